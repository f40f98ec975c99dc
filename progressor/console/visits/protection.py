"""What keeps other sites and stored texts from acting through the browser of a visitor.

Scripts, styles and requests come from the console alone, and nothing may frame it. A form that
changes something is taken only from a page of the console itself: it has the session's token, and
the browser says that it comes from here.
"""

import secrets
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from progressor.console.visits.sessions import Session

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Protection:
    """Adds the headers to each response; pages are not stored anywhere."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, protected)


def is_from_here(request: Request, session: Session, form_token: str) -> bool:
    """Return whether a form was sent by a page of the console, in this session."""
    if not secrets.compare_digest(form_token.encode(), session.form_token.encode()):
        return False
    site = request.headers.get("sec-fetch-site", "same-origin")
    if site not in {"same-origin", "none"}:
        return False
    origin = request.headers.get("origin")
    # "null": a browser that hides it, as after a redirect; the token has to do.
    return origin in {None, "null"} or urlsplit(origin).netloc == request.headers.get("host")
