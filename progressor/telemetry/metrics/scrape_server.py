"""The HTTP server of the metrics endpoint, with bounds that ``http.server`` lacks.

It reads one request per connection, answers any input with an HTTP status, and logs nothing that a
client sends as an error. A request must arrive within REQUEST_SECONDS in total, and be read within
ANSWER_SECONDS. Of more than CONNECTIONS_MAX connections, the one that has been sending its request
for longest is closed: a scraper sends its request at once.

prometheus-client's own server (0.26) was tried: 60 clients that sent half a request took 8 s to
connect and kept 60 threads; an ``Accept`` with ``version=none`` was answered with 500.
"""

import contextlib
import http
import http.server
import io
import logging
import socket
import socketserver
import ssl
import sys
import threading
from collections.abc import Callable
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from progressor.clock import Clock

PATH = "/metrics"
CONNECTIONS_MAX = 64
REQUEST_SECONDS = 5.0
ANSWER_SECONDS = 10.0
HEAD_BYTES_MAX = 16 * 1024

_LINGER_SECONDS = 1.0
_CHUNK = 4096
_ENDS = (b"\r\n\r\n", b"\n\n")
_TOO_MANY = b"HTTP/1.0 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
_BROKEN = b"HTTP/1.0 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"

Headers = list[tuple[str, str]]
NewContext = Callable[[], ssl.SSLContext]
"""Returns what the next connection is encrypted by."""
Scrape = Callable[[str, str, list[str]], tuple[Headers, bytes]]
"""Takes Accept, Accept-Encoding and the requested names; returns headers and body."""

_log = logging.getLogger(__name__)


class ScrapeServer(socketserver.ThreadingTCPServer):
    allow_reuse_address = True  # despite connections of an engine that has stopped
    daemon_threads = True
    request_queue_size = CONNECTIONS_MAX

    def __init__(
        self, host: str, port: int, scrape: Scrape, clock: Clock, tls: NewContext | None = None
    ) -> None:
        """Listen; `tls` None: without TLS.

        Raises:
            OSError: It cannot listen on the address.
        """
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, _, _, _, address = places[0]
        self.scrape, self.clock, self._tls = scrape, clock, tls
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        # Connections whose request is incomplete, the oldest first.
        self._sending: dict[socket.socket, None] = {}
        super().__init__(address, _Handler)  # type: ignore[arg-type]

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; its own thread does the handshake."""
        connection, address = super().get_request()
        if self._tls is None:
            return connection, address
        secured = self._tls().wrap_socket(
            connection, server_side=True, do_handshake_on_connect=False
        )
        return secured, address

    def has_sent(self, connection: socket.socket) -> bool:
        """Record that a request is complete; return False if its connection has been closed."""
        with self._lock:
            if connection not in self._sending:
                return False
            del self._sending[connection]
            return True

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        if self._enter(request):
            super().process_request(request, client_address)
            return
        request.settimeout(0)
        with contextlib.suppress(OSError):
            request.send(_TOO_MANY)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Log a bug; a disconnected client is not one."""
        if isinstance(sys.exception(), OSError):  # the client has disconnected
            return
        _log.error("scrape failed", extra={"peer": client_address[0]}, exc_info=True)
        with contextlib.suppress(OSError):
            request.sendall(_BROKEN)

    def _enter(self, connection: socket.socket) -> bool:
        """Add a connection, if need be instead of the slowest; return False to refuse it."""
        with self._lock:
            if len(self._open) >= CONNECTIONS_MAX:
                slowest = next(iter(self._sending), None)
                if slowest is None:
                    return False
                del self._sending[slowest]
                self._open.discard(slowest)
                with contextlib.suppress(OSError):
                    slowest.shutdown(socket.SHUT_RDWR)  # its thread wakes up and closes it
            self._open.add(connection)
            self._sending[connection] = None
            return True

    def _leave(self, connection: socket.socket) -> None:
        with self._lock:
            self._open.discard(connection)
            self._sending.pop(connection, None)


class _Handler(http.server.BaseHTTPRequestHandler):
    server_version, sys_version = "progressor", ""
    default_request_version = "HTTP/1.0"  # 0.9, the default, has no status
    # Until a request line is known.
    requestline = command = ""
    request_version = "HTTP/1.0"

    def handle(self) -> None:
        server = cast("ScrapeServer", self.server)
        until = server.clock.monotonic() + REQUEST_SECONDS
        if isinstance(self.connection, ssl.SSLSocket):
            # Without one there is no way to answer, and an answer would only wait for it.
            self.connection.settimeout(REQUEST_SECONDS)
            self.connection.do_handshake()
        head, status = self._read_head(server.clock, until)
        if not server.has_sent(self.connection) or (not head and status is None):
            return
        self.connection.settimeout(ANSWER_SECONDS)
        if status is not None:
            self.send_error(status)
        else:
            self.rfile = io.BufferedReader(io.BytesIO(head))
            self.handle_one_request()
        self._linger(server.clock)

    def do_GET(self) -> None:
        try:
            asked = urlsplit(self.path)
            names = parse_qs(asked.query, max_num_fields=_CHUNK).get("name[]", [])
        except ValueError:
            self.send_error(http.HTTPStatus.BAD_REQUEST)
            return
        if asked.path != PATH:
            self.send_error(http.HTTPStatus.NOT_FOUND, explain=f"metrics are at {PATH}")
            return
        accepted = self.headers.get("Accept", ""), self.headers.get("Accept-Encoding", "")
        headers, body = cast("ScrapeServer", self.server).scrape(*accepted, names)
        self.send_response(http.HTTPStatus.OK)
        for name, value in (*headers, ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815  http.server's name

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002, ANN401
        pass

    def _read_head(self, clock: Clock, until: float) -> tuple[bytes, http.HTTPStatus | None]:
        """Return the request up to the end of its headers, and a status if it is wrong."""
        head = b""
        while not _is_complete(head):
            if len(head) > HEAD_BYTES_MAX:
                is_line = b"\n" not in head
                large = http.HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
                return head, http.HTTPStatus.REQUEST_URI_TOO_LONG if is_line else large
            left = until - clock.monotonic()
            self.connection.settimeout(max(left, 0.001))
            try:
                chunk = self.connection.recv(_CHUNK) if left > 0 else None
            except TimeoutError:
                chunk = None
            if chunk is None:
                return head, http.HTTPStatus.REQUEST_TIMEOUT
            if not chunk:
                # Half a request; without one, a client that only checks whether the port is open.
                return head, http.HTTPStatus.BAD_REQUEST if head else None
            head += chunk
        is_blank = not head.splitlines()[0].strip()
        return head, http.HTTPStatus.BAD_REQUEST if is_blank else None

    def _linger(self, clock: Clock) -> None:
        """Let the client read the response, which closing would discard while the client sends."""
        until = clock.monotonic() + _LINGER_SECONDS
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            while (left := until - clock.monotonic()) > 0:
                self.connection.settimeout(left)
                if not self.connection.recv(_CHUNK):
                    return


def _is_complete(head: bytes) -> bool:
    """Return whether the headers have ended, or there are none as in HTTP/0.9 or not HTTP."""
    if any(end in head for end in _ENDS) or head.startswith((b"\r\n", b"\n")):
        return True
    line, newline, _ = head.partition(b"\n")
    return bool(newline) and b"HTTP/" not in line
