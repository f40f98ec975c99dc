"""The engine's credentials for processors: tables ``[processor_credentials.NAME]``."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from progressor import errors
from progressor.domain.processes.namespace import is_namespace_name
from progressor.settings.decoding import Given, decode, given_table, setting


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorCredentials:
    """Files on the replica's machine; the database stores only the name of the table."""

    tls: bool = setting(
        True,  # noqa: FBT003 - the default of a key
        "use TLS; false: send only the token, to targets on this machine",
    )
    ca: Path | None = setting(
        None, "PEM file of the authorities that certify processors; empty: the system's"
    )
    certificate: Path | None = setting(
        None, "PEM file of the engine's certificate, with its chain; empty: none is presented"
    )
    key: Path | None = setting(None, "PEM file of the certificate's private key")
    server_name: str = setting(
        "", "the name to expect in the processor's certificate; empty: the host of the target"
    )
    token_file: Path | None = setting(
        None, "file with a bearer token to send with every call and stream; empty: none is sent"
    )


def decode_credentials(given: Given) -> Mapping[str, ProcessorCredentials]:
    tables = given_table(given, prefix="processor_credentials")
    return {name: _decode(name, table) for name, table in tables.items()}


def _decode(name: str, given: Given) -> ProcessorCredentials:
    prefix = f"processor_credentials.{name}"
    if not is_namespace_name(name):
        raise errors.ConfigError(prefix, f"must be 1 to 64 of [a-z0-9._-], got {name!r}")
    found = decode(ProcessorCredentials, given_table(given, prefix=prefix), prefix=prefix)
    if (found.certificate is None) != (found.key is None):
        missing, present = ("key", "certificate") if found.key is None else ("certificate", "key")
        raise errors.ConfigError(f"{prefix}.{missing}", f"must be given if {prefix}.{present} is")
    if not found.tls and (found.ca or found.certificate or found.server_name):
        words = "must be true with ca, certificate or server_name"
        raise errors.ConfigError(f"{prefix}.tls", words)
    return found
