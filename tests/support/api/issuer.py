"""An issuer of OpenID Connect on this machine: real HTTP, and keys that the test makes."""

import base64
import contextlib
import hmac
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl

from joserfc import jws
from joserfc.jwk import ECKey, OKPKey, RSAKey

from progressor.wire.tls import TlsFiles

SigningKey = RSAKey | ECKey | OKPKey
AUDIENCE = "progressor"
Redirected = Callable[[Mapping[str, str]], str]
Posted = Callable[[Mapping[str, str]], tuple[int, Mapping[str, object]]]


class TestIssuer:
    """An issuer, what it publishes, and what was asked of it."""

    __test__ = False

    def __init__(self) -> None:
        self.keys: dict[str, SigningKey] = {
            "rsa": RSAKey.generate_key(2048, {"kid": "rsa"}),
            "ps": RSAKey.generate_key(2048, {"kid": "ps", "alg": "PS256"}),
            "ec": ECKey.generate_key("P-256", {"kid": "ec"}),
            "ed": OKPKey.generate_key("Ed25519", {"kid": "ed"}),
        }
        self.url = ""
        self.asked: list[str] = []
        self.garbage: bytes | None = None
        self.released = threading.Event()
        self.released.set()
        self.redirects: dict[str, Redirected] = {}
        self.posts: dict[str, Posted] = {}
        self.authorizations: list[str] = []
        self.more: dict[str, object] = {}
        self.discovery: dict[str, object] = {}

    def documents(self) -> Mapping[str, object]:
        public = [key.as_dict(private=False) for key in self.keys.values()]
        return {
            "/.well-known/openid-configuration": {
                "issuer": self.url,
                "jwks_uri": f"{self.url}/keys",
                **{name: f"{self.url}{path}" for name, path in self.more.items()},
                **self.discovery,
            },
            "/keys": {"keys": public},
        }

    def token(
        self, kid: str = "rsa", algorithm: str = "RS256", *, header: Any = None, **claims: Any
    ) -> str:
        """Return a token that is good but for what is given; a claim of None is left out."""
        key = self.keys.get(kid) or self.keys["rsa"]
        signed = jws.serialize_compact(
            {"alg": algorithm, "kid": kid, "typ": "JWT", **(header or {})},
            json.dumps(self.claims(**claims)),
            type(key).import_key({**key.as_dict(private=True), "alg": algorithm}),
            registry=jws.JWSRegistry(algorithms=[algorithm], strict_check_header=False),
        )
        assert isinstance(signed, str)
        return signed

    def claims(self, **changed: Any) -> dict[str, Any]:
        now = time.time()
        claims = {
            "iss": self.url, "aud": AUDIENCE, "sub": "ada", "exp": now + 600, "iat": now,
            "nbf": now, **changed,
        }  # fmt: skip
        return {name: it for name, it in claims.items() if it is not None}

    def forged(self, header: Mapping[str, object], secret: bytes = b"", **claims: Any) -> str:
        """Return a token that no library would make: unsigned, or signed by a secret."""
        signed = f"{_encoded(header)}.{_encoded(self.claims(**claims))}"
        mac = hmac.digest(secret, signed.encode(), "sha256") if secret else b""
        return f"{signed}.{_base64(mac)}"


def _encoded(document: object) -> str:
    return _base64(json.dumps(document).encode())


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


@contextlib.contextmanager
def running_issuer(tls: TlsFiles | None = None) -> Iterator[TestIssuer]:
    """Serve an issuer until the context is left."""
    issuer = TestIssuer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            issuer.asked.append(self.path)
            path, _, query = self.path.partition("?")
            if path in issuer.redirects:
                self._answer(302, b"", issuer.redirects[path](dict(parse_qsl(query))))
                return
            document = issuer.documents().get(self.path)
            body = json.dumps(document).encode() if issuer.garbage is None else issuer.garbage
            self._answer(200 if document else 404, body)

        def do_POST(self) -> None:
            issuer.asked.append(self.path)
            issuer.authorizations.append(self.headers.get("Authorization", ""))
            form = self.rfile.read(int(self.headers["Content-Length"])).decode()
            status, document = issuer.posts[self.path](dict(parse_qsl(form)))
            self._answer(status, json.dumps(document).encode())

        def _answer(self, status: int, body: bytes, location: str = "") -> None:
            issuer.released.wait(30)
            self.send_response(status)
            if location:
                self.send_header("Location", location)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    issuer.url = f"http://127.0.0.1:{server.server_port}"
    if tls is not None and tls.certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tls.certificate, tls.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        issuer.url = f"https://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield issuer
    finally:
        issuer.released.set()
        server.shutdown()
        thread.join()
        server.server_close()
