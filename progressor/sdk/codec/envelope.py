"""The envelope of an encrypted payload: everything about it that needs no key.

============  =======================================================================
bytes         content
============  =======================================================================
0 .. 3        ``FF 50 47 45``; no JSON and no UTF-8 text begins with ``FF``
4             the version of the envelope, 1
5             the length of the key id, 1 .. 64
6 ..          the key id, ASCII
12 bytes      the nonce
the rest      the ciphertext of AES-256-GCM, with its tag of 16 bytes at the end
============  =======================================================================

All bytes before the nonce are the associated data.
"""

import dataclasses
import re

from progressor.sdk.codec.codecs import DecryptionError

MAGIC = b"\xffPGE"
NONCE_BYTES = 12
TAG_BYTES = 16

_VERSION = 1
_ID_AT = len(MAGIC) + 2
_KEY_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


@dataclasses.dataclass(frozen=True, slots=True)
class Envelope:
    """The parts of an encrypted payload."""

    key_id: str
    nonce: bytes
    ciphertext: bytes

    @property
    def header(self) -> bytes:
        """The associated data, with which the payload begins."""
        return header_of(self.key_id)


def header_of(key_id: str) -> bytes:
    """Return what a payload that is encrypted with a key begins with."""
    return MAGIC + bytes((_VERSION, len(key_id))) + key_id.encode("ascii")


def check_key_id(key_id: str) -> str:
    """Return a key id; ValueError, without it since it may be a key, if it cannot be one."""
    if not _KEY_ID.fullmatch(key_id):
        message = (
            "the id of a key must be 1 to 64 of the characters A-Z, a-z, 0-9, '.', '_' and '-', "
            f"and begin with a letter or digit, got another text of {len(key_id)} characters"
        )
        raise ValueError(message)
    return key_id


def is_encrypted(payload: bytes) -> bool:
    """Return whether a payload is encrypted, by its first bytes."""
    return payload.startswith(MAGIC)


def opened(payload: bytes) -> Envelope:
    """Return the parts of an encrypted payload.

    Raises:
        DecryptionError: It is damaged, or of a later release.
    """
    assert is_encrypted(payload), "only an encrypted payload has an envelope"
    if payload[len(MAGIC) : _ID_AT - 1] != bytes((_VERSION,)):
        message = "the encrypted payload is damaged, or was written by a later release"
        raise DecryptionError(message)
    id_end = _ID_AT + (payload[_ID_AT - 1] if len(payload) >= _ID_AT else 0)
    key_id = payload[_ID_AT:id_end].decode("ascii", errors="replace")
    if len(payload) < id_end + NONCE_BYTES + TAG_BYTES or not _KEY_ID.fullmatch(key_id):
        message = f"the encrypted payload is damaged: it has {len(payload)} bytes"
        raise DecryptionError(message)
    ciphertext_at = id_end + NONCE_BYTES
    return Envelope(key_id, payload[id_end:ciphertext_at], payload[ciphertext_at:])
