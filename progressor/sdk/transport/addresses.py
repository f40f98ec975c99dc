"""Checks of addresses that gRPC leaves out."""

import re

_PORT_MAX = 65_535
_HOST_AND_PORT = re.compile(r"(?:\[[^\[\]]*\]|[^:/\[\]]*):(\d+)", re.ASCII)
_BARE_HOST = re.compile(r"\[[^\[\]]*\]|[^:/\[\]]*")


def check_address(address: str) -> None:
    """Check the port of ``host:port``; other forms, as unix:/path and dns:///name:1, are gRPC's.

    gRPC uses a port modulo 65,536, and 443 if there is none.

    Raises:
        ValueError: The port is missing or out of range.
    """
    match = _HOST_AND_PORT.fullmatch(address)
    if match is not None and int(match[1][:6]) > _PORT_MAX:
        message = f"{address!r}: the port must be at most {_PORT_MAX}"
        raise ValueError(message)
    if _BARE_HOST.fullmatch(address):
        message = f"{address!r} has no port: must be host:port or unix:/path"
        raise ValueError(message)
