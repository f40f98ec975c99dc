"""The trusted OpenID Connect issuers: tables ``[access.issuers.NAME]``."""

import dataclasses
import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from progressor import errors
from progressor.domain.processes.namespace import is_namespace_name
from progressor.settings.decoding import Faults, Given, decode, given_table, setting
from progressor.wire.https import split_url

TABLE = "access.issuers"
ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
    "Ed25519",
)  # fmt: skip
"""Only asymmetric ones: anyone who can verify a shared-secret signature can also forge one."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Issuer:
    """An issuer of identity tokens, and which of its tokens are accepted."""

    issuer: str = setting("", "the issuer, exactly as its tokens name it (iss); required")
    audiences: Annotated[tuple[str, ...], Meta(min_length=1, max_length=32)] = setting(
        (), "accepted audiences: a token must have one of them (aud); required"
    )
    algorithms: Annotated[tuple[str, ...], Meta(min_length=1, max_length=16)] = setting(
        (), f"accepted signature algorithms: some of {', '.join(ALGORITHMS)}; required"
    )
    jwks_url: str = setting(
        "", "URL of the issuer's keys; empty: taken from its discovery document"
    )
    ca: Path | None = setting(
        None, "PEM file of the authorities that certify its servers; empty: the system's"
    )
    principal_claim: str = setting("sub", "the claim that names the principal")
    groups_claim: str = setting(
        "", "the claim that lists the groups of the principal; empty: no groups"
    )
    clock_skew: Annotated[dt.timedelta, Meta(ge=0, le=300)] = setting(
        dt.timedelta(seconds=30), "how far the clocks of issuer and engine may differ"
    )


def decode_issuers(given: Given) -> Mapping[str, Issuer]:
    """Return the issuers by the names of their tables.

    Raises:
        ConfigError: A key is unknown or missing, or its value is wrong.
    """
    found, faults, names = {}, Faults(), dict[str, str]()
    for name, table in given_table(given, prefix=TABLE).items():
        with faults:
            issuer = _decode(name, table)
            other = names.setdefault(issuer.issuer, name)
            if other != name:
                words = f"must differ from {TABLE}.{other}.issuer"
                raise errors.ConfigError(f"{TABLE}.{name}.issuer", words)
            found[name] = issuer
    faults.raise_all()
    return found


def _decode(name: str, given: Given) -> Issuer:
    prefix = f"{TABLE}.{name}"
    if not is_namespace_name(name):
        raise errors.ConfigError(prefix, f"must be 1 to 64 of [a-z0-9._-], got {name!r}")
    found = decode(Issuer, given_table(given, prefix=prefix), prefix=prefix)
    faults = Faults()
    for key in ("issuer", "audiences", "algorithms", "principal_claim"):
        with faults:
            if not getattr(found, key):
                raise errors.ConfigError(f"{prefix}.{key}", "must be given")
    for key in ("issuer", "jwks_url"):
        with faults:
            _check_url(f"{prefix}.{key}", getattr(found, key))
    for algorithm in found.algorithms:
        with faults:
            if algorithm not in ALGORITHMS:
                words = f"must be some of {', '.join(ALGORITHMS)}, got {algorithm!r}"
                raise errors.ConfigError(f"{prefix}.algorithms", words)
    faults.raise_all()
    return found


def _check_url(key: str, url: str) -> None:
    try:
        if url:
            split_url(url)
    except ValueError as error:
        raise errors.ConfigError(key, f"{error}, got {url!r}") from error
