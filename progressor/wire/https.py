"""JSON over HTTPS, as the endpoints of OpenID Connect speak it; blocks, with bounds on everything.

Connects directly, follows no redirects, and reads one answer. Plaintext only on this machine.
"""

import contextlib
import http.client
import ipaddress
import json
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlencode, urlsplit

TIMEOUT_SECONDS = 5.0
"""For one request from the first packet to the last."""

ANSWER_BYTES_MAX = 512 * 1024


class HttpsError(Exception):
    """No answer that can be used; the text says why, and shows nothing that was sent."""


def split_url(url: str) -> SplitResult:
    """Return the parts of a URL; ValueError unless it is HTTPS, or HTTP on this machine."""
    parts = urlsplit(url)
    is_local = parts.scheme == "http" and is_loopback(parts.hostname or "")
    if not parts.hostname or not (parts.scheme == "https" or is_local):
        message = "must be an https:// URL, or http:// on this machine"
        raise ValueError(message)
    if parts.username is not None or parts.fragment or not url.isprintable() or " " in url:
        message = "must have no user, fragment, space or control character"
        raise ValueError(message)
    if parts.port == 0:  # raises ValueError unless it is a port
        message = "must not have the port 0"
        raise ValueError(message)
    return parts


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def fetch_json(
    url: str,
    *,
    form: Mapping[str, str] | None = None,
    headers: Mapping[str, str] | None = None,
    ca: Path | None = None,
    timeout: float = TIMEOUT_SECONDS,
) -> tuple[int, dict[str, Any]]:
    """Return the status and the JSON object of an answer.

    Args:
        url: As `split_url` has it.
        form: What is sent by POST; None: GET.
        headers: More of them.
        ca: PEM file of the authorities that certify the server; None: those of the system.
        timeout: In seconds, for all of it.

    Raises:
        HttpsError: No answer came in time, or it is too large or not a JSON object.
    """
    content = None if form is None else urlencode(form).encode()
    sent = {"Content-Type": "application/x-www-form-urlencoded"} if form is not None else {}
    sent.update(headers or {})
    status, body = exchanged(url, content, headers=sent, ca=ca, timeout=timeout)
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise HttpsError(f"{url}: status {status}, and the answer is not a JSON object")
    return status, document


def exchanged(  # what a request has, keyword-only
    url: str,
    body: bytes | None,
    *,
    headers: Mapping[str, str],
    ca: Path | None = None,
    timeout: float = TIMEOUT_SECONDS,
    answer_bytes_max: int = ANSWER_BYTES_MAX,
) -> tuple[int, bytes]:
    """Return the status and the body of an answer; a request with a body is a POST, else a GET.

    Raises:
        HttpsError: No answer came in time, or it is too large.
    """
    try:
        parts = split_url(url)
        with _connected(parts, ca, timeout) as connection:
            path = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
            sent = {"Accept": "application/json", "Connection": "close", **headers}
            connection.request("GET" if body is None else "POST", path, body, sent)
            response = connection.getresponse()
            answer = response.read(answer_bytes_max + 1)
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = str(error) or type(error).__name__
        raise HttpsError(f"{url}: {why}") from error
    if len(answer) > answer_bytes_max:
        raise HttpsError(f"{url}: the answer has more than {answer_bytes_max} bytes")
    return response.status, answer


@contextlib.contextmanager
def _connected(
    parts: SplitResult, ca: Path | None, timeout: float
) -> Iterator[http.client.HTTPConnection]:
    assert parts.hostname is not None, "checked by split_url"
    if parts.scheme == "https":
        context = ssl.create_default_context(cafile=None if ca is None else str(ca))
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            parts.hostname, parts.port, timeout=timeout, context=context
        )
    else:
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
    connection.connect()
    # The timeout of a socket begins anew with each packet, and a slow server could send forever.
    timer = threading.Timer(timeout, _cut, (connection.sock,))
    timer.daemon = True
    timer.start()
    try:
        yield connection
    finally:
        timer.cancel()
        connection.close()


def _cut(connected: socket.socket) -> None:
    with contextlib.suppress(OSError):
        # Not by the method of a TLS socket, which would change it under its reader.
        socket.socket.shutdown(connected, socket.SHUT_RDWR)


def discover(
    issuer: str, key: str, *, ca: Path | None = None, timeout: float = TIMEOUT_SECONDS
) -> str:
    """Return a URL that an issuer says of itself.

    Raises:
        HttpsError: It is not that issuer's document, or has no such URL.
    """
    url = f"{issuer.removesuffix('/')}/.well-known/openid-configuration"
    status, document = fetch_json(url, ca=ca, timeout=timeout)
    if status != http.client.OK:
        raise HttpsError(f"{url}: status {status}")
    if document.get("issuer") != issuer:
        raise HttpsError(f"{url}: the issuer there is {document.get('issuer')!r:.200}")
    found = document.get(key)
    # Not a service of this machine, to which an issuer elsewhere would send us.
    is_local = not issuer.lower().startswith("https:")
    schemes = ("https:", "http:") if is_local else ("https:",)
    if not isinstance(found, str) or not found.lower().startswith(schemes):
        raise HttpsError(f"{url}: {key} must be an https:// URL, got {found!r:.200}")
    return found
