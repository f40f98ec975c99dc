"""API tokens: ``prg_ID_SECRET``. Only a hash of the secret is stored.

A secret is 32 random bytes, so one round of SHA-256 suffices; passwords would need more.
"""

import dataclasses
import datetime as dt
import hashlib
import hmac
import re

PREFIX = "prg_"

NAME_RULE = "must be 1 to 128 ASCII letters, digits and . _ @ / + -"
"""ASCII only, so that no two names look alike."""

_NAME = re.compile(r"[A-Za-z0-9._@/+-]{1,128}")
_TOKEN = re.compile(r"prg_([0-9a-z]{12})_([0-9a-f]{64})")
_ID_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_ID_LENGTH = 12


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ApiToken:
    """An API token as operators see it; instants are by PostgreSQL's clock."""

    token_id: str
    name: str
    created_at: dt.datetime
    created_by: str
    expires_at: dt.datetime | None = None
    revoked_at: dt.datetime | None = None
    last_used_at: dt.datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ValidToken:
    """The data needed to check a token."""

    token_id: str
    name: str
    secret_hash: bytes = dataclasses.field(repr=False)
    expires_at: dt.datetime | None


def is_token_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def compose(id_bytes: bytes, secret: bytes) -> tuple[str, str, bytes]:
    """Return the id, the whole token and the hash of its secret, from 8 and 32 random bytes."""
    number, token_id = int.from_bytes(id_bytes), ""
    for _ in range(_ID_LENGTH):
        number, digit = divmod(number, len(_ID_DIGITS))
        token_id += _ID_DIGITS[digit]
    return token_id, f"{PREFIX}{token_id}_{secret.hex()}", _hash(secret.hex())


def split(token: str) -> tuple[str, str] | None:
    """Return the id and the secret of an API token; None if the text is not one."""
    found = _TOKEN.fullmatch(token)
    return None if found is None else (found[1], found[2])


def is_secret_of(secret: str, valid: ValidToken) -> bool:
    """Compare in constant time, which reveals nothing about the secret."""
    return hmac.compare_digest(_hash(secret), valid.secret_hash)


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()
