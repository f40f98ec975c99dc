"""What keeps other sites and stored texts from acting through the browser of a visitor.

Scripts, styles and requests come from the console alone, and nothing may frame it; another site can
only link to it, and not have a browser load its pages or streams within others. A form that changes
something is taken only from a page of the console itself: it has the session's token, and the
browser says that it comes from here. A console that only this machine can reach answers only to
names of this machine: another site could have its own name resolve to it (DNS rebinding).
"""

import secrets
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from progressor.console.options import Options
from progressor.console.visits.sessions import Session

_LOCAL_HOSTS = {"localhost", "127.0.0.1", "::1"}

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

    def __init__(self, app: ASGIApp, options: Options) -> None:
        self._app, self._options = app, options

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

        app, request = self._app, Request(scope)
        if not _is_host_ours(request.headers.get("host", ""), self._options):
            app = PlainTextResponse("this console has another address", status_code=421)
        elif _is_embedded(request):
            app = PlainTextResponse("another site may only link here", status_code=403)
        await app(scope, receive, protected)


def is_from_here(request: Request, options: Options) -> bool:
    """Return whether a form was sent by a page of the console, as far as the browser says."""
    site = request.headers.get("sec-fetch-site", "same-origin")
    if site not in {"same-origin", "none"}:
        return False
    origin = request.headers.get("origin")
    # "null": a browser that hides it, as after a redirect; the token has to do.
    if origin in {None, "null"}:
        return True
    ours = {request.headers.get("host"), urlsplit(options.public_url).netloc}
    return origin.partition("://")[2] in ours - {""}


def is_own_form(request: Request, options: Options, session: Session, form_token: str) -> bool:
    """Return whether a form was sent by a page of the console, in this session."""
    if not secrets.compare_digest(form_token.encode(), session.form_token.encode()):
        return False
    return is_from_here(request, options)


def _is_embedded(request: Request) -> bool:
    """Return whether another site asks for something by itself: a picture, a stream, a frame."""
    if request.headers.get("sec-fetch-site") not in {"cross-site", "same-site"}:
        return False
    is_page = request.headers.get("sec-fetch-dest", "document") == "document"
    return not (is_page and request.headers.get("sec-fetch-mode", "navigate") == "navigate")


def _is_host_ours(host: str, options: Options) -> bool:
    if not options.is_local or (host and host == urlsplit(options.public_url).netloc):
        return True
    try:
        return urlsplit(f"//{host}").hostname in _LOCAL_HOSTS
    except ValueError:
        return False
