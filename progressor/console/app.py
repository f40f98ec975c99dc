"""The console as an ASGI application: its routes, and how a page becomes a response."""

import collections
import contextlib
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Hashable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, parse_qsl, unquote, urlencode, urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Match, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from progressor import access_errors, errors
from progressor.clock import Clock, SystemClock
from progressor.console.actions.action import Action, Entered, command_line, invalid
from progressor.console.live import INTERVAL_SECONDS, Live, Version
from progressor.console.options import Options
from progressor.console.pages.page import Page
from progressor.console.pages.pages import PAGES
from progressor.console.pages.processes import payload
from progressor.console.rendering.templates import Templates
from progressor.console.visits.clients import Clients
from progressor.console.visits.logins import Login, LoginFailedError, Logins
from progressor.console.visits.meters import Meters
from progressor.console.visits.protection import Protection, is_from_here, is_own_form
from progressor.console.visits.sessions import LIFETIME_MAX, Session, Sessions
from progressor.console.visits.visit import Ask, Links, Look, Query
from progressor.console.words.words import LANGUAGES, Words, is_zone, language_of
from progressor.sdk.transport.failures import EngineUnavailableError

COOKIE = "progressor_console"
FORM_BYTES_MAX = 2_000_000
"""Of an action; other forms, which anybody can send, are small."""

SMALL_FORM_BYTES_MAX = 64_000
STREAMS_MAX = 1000
SESSION_STREAMS_MAX = 50
"""Of one browser, which then fetches further pages now and then."""

_FIELDS_MAX = 100
_QUERY_FIELDS_MAX = 100
_LOOKS_KEPT_MAX = 20
"""Texts of one version of a page: cookies can ask for thousands."""
_THEMES = ("system", "light", "dark")
_STATIC = Path(__file__).parent / "static"
_YEAR_SECONDS = 365 * 86_400

_log = logging.getLogger(__name__)


def build(options: Options, *, clock: Clock | None = None) -> ASGIApp:
    """Return a console, to be served, or mounted in an application under `Options.base_path`.

    Raises:
        ValueError: The address of the engine, or a file of its TLS, cannot be used.
    """
    console = _Console(options, clock or SystemClock())
    routes = [
        *(Route(it.path, console.endpoint(it), methods=["GET", "POST"]) for it in PAGES),
        Route("/live", console.live, methods=["GET"]),
        Route("/payload", console.payload, methods=["GET"]),
        Route("/region", console.region, methods=["GET"]),
        Route("/login", console.login, methods=["GET", "POST"]),
        Route("/login/issuer", console.begin_login, methods=["GET"]),
        Route("/login/callback", console.finish_login, methods=["GET"]),
        Route("/logout", console.logout, methods=["POST"]),
        Route("/preferences", console.preferences, methods=["POST"]),
        Mount("/static", StaticFiles(directory=_STATIC)),
        Route("/{path:path}", console.not_found, methods=["GET", "POST"]),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={errors.ProgressorError: console.failed},
        lifespan=console.lifespan,
    )
    # Around all of it: responses to failures of our own have the headers, too.
    return Protection(app, options)


class _Console:
    def __init__(self, options: Options, clock: Clock) -> None:
        self._options, self._clock = options, clock
        self._clients = Clients(options, clock)
        self._logins = Logins(options.openid, clock) if options.openid else None
        self._sessions, self._meters = Sessions(clock), Meters()
        self._live, self._templates = Live(clock), Templates()
        self._links = Links(options.base_path)
        self._streams = collections.Counter[str]()
        self._routes = [(Route(it.path, self.not_found), it) for it in PAGES]

    @contextlib.asynccontextmanager
    async def lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        yield
        await self._clients.close()

    # --- Pages

    def endpoint(self, page: Page) -> Any:  # noqa: ANN401  # a Starlette endpoint
        async def respond(request: Request) -> Response:
            session = self._session(request)
            try:
                query = _query_of(request.url.query)
                ask = await self._ask(session, request.path_params, query)
                if request.method == "POST":
                    return await self._act(request, page, ask, session)
                facts = await page.load(ask)
            except access_errors.UnauthenticatedError:
                return self._to_login(request)
            except errors.ProgressorError as error:
                return self._failed(request, page, session, error)
            action = next((it for it in page.actions if it.name == ask.one("do")), None)
            values = {it: ask.one(it) for it in ask.query}
            if action is not None:
                values = {**action.initial(facts), **values}
            return self._page(request, page, ask, session, facts, action=action, values=values)

        return respond

    async def _ask(self, session: Session | None, place: Mapping[str, Any], query: Query) -> Ask:
        token = None if session is None else session.token
        if isinstance(token, Login):
            await token.renew()
        return Ask(
            client=await self._clients.of(token),
            identity=await self._clients.identity(token),
            options=self._options,
            meters=self._meters,
            place={name: str(it) for name, it in place.items()},
            query=query,
        )

    def _page(  # noqa: PLR0913  # what a page is made of
        self,
        request: Request,
        page: Page,
        ask: Ask,
        session: Session | None,
        facts: Mapping[str, Any],
        *,
        action: Action | None = None,
        values: Mapping[str, str] | None = None,
        error: errors.ProgressorError | None = None,
    ) -> Response:
        if session is None:
            session = self._sessions.open()
        entered = None if action is None else Entered(ask, values or {})
        shown = {
            **self._facts(request, page, ask, facts),
            "session": session,
            "notes": session.take_notes(),
            "action": action,
            "entered": entered,
            "command": command_line(action, entered) if action and entered else "",
            "error": error,
        }
        words = self._look(request).words
        response = HTMLResponse(
            self._templates.render("layout.html", words, shown),
            status_code=200 if error is None else _status_of(error),
        )
        self._remember(request, response, session)
        return response

    def _facts(
        self, request: Request, page: Page, ask: Ask | None, facts: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return what every template can use, and what a page shows."""
        return {
            **facts,
            "page": page,
            "region": page.template,
            "ask": ask,
            "actions": [] if ask is None else _offered(page, ask, facts),
            "links": self._links,
            "path": _object_of(request, self._links.base, page),
            "here": _here(request, self._links.base),
            "look": self._look(request),
            "options": self._options,
            "interval": INTERVAL_SECONDS,
        }

    def _failed(
        self, request: Request, page: Page, session: Session | None, error: errors.ProgressorError
    ) -> Response:
        session = session or self._sessions.open()
        facts = {
            **self._facts(request, page, None, {}),
            "region": "failed.html",
            "session": session,
            "notes": [],
            "action": None,
            "error": error,
        }
        words = self._look(request).words
        text = self._templates.render("layout.html", words, facts)
        response = HTMLResponse(text, status_code=_status_of(error))
        self._remember(request, response, session)
        return response

    async def failed(self, request: Request, error: Exception) -> Response:
        """Show an error of a request that is about no page."""
        return self._failed(request, PAGES[0], self._session(request), _as_ours(error))

    async def not_found(self, request: Request) -> Response:
        response = await self.failed(request, invalid("path", "no such page"))
        response.status_code = 404
        return response

    async def payload(self, request: Request) -> Response:
        """Return a payload whole, to be saved and never shown as a page."""
        session = self._session(request)
        try:
            ask = await self._ask(session, {}, _query_of(request.url.query))
            name, data = await payload.read(ask)
        except access_errors.UnauthenticatedError:
            return self._to_login(request)
        except errors.ProgressorError as error:
            return self._failed(request, PAGES[0], session, error)
        headers = {"Content-Disposition": f'attachment; filename="{name}"'}
        return Response(data, media_type="application/octet-stream", headers=headers)

    # --- Actions

    async def _act(
        self, request: Request, page: Page, ask: Ask, session: Session | None
    ) -> Response:
        form = await _form_of(request, FORM_BYTES_MAX)
        action = next((it for it in page.actions if it.name == form.get("do")), None)
        if session is None or not self._is_own(request, session, form):
            raise invalid("form_token", "the form is out of date; load the page again")
        if action is None:
            raise invalid("do", f"no such action: {form.get('do', '')!r}")
        entered = Entered(ask, form)
        try:
            _check(action, entered)
            done = await action.run(entered)
        except access_errors.UnauthenticatedError:
            raise
        except errors.ProgressorError as error:
            facts = await page.load(ask)
            return self._page(
                request, page, ask, session, facts, action=action, values=form, error=error
            )
        session.note(self._look(request).words(done.text, **done.values))
        here = self._links.to(_object_of(request, self._links.base, page))
        return RedirectResponse(done.address or here, status_code=303)

    # --- Live

    async def live(self, request: Request) -> Response:
        """Stream the region of a page as it changes."""
        page, ask = await self._watched(request)
        browser = _browser_of(self._session(request))
        if self._streams.total() >= STREAMS_MAX or self._streams[browser] >= SESSION_STREAMS_MAX:
            raise HTTPException(429, "too many pages are watched")
        return StreamingResponse(
            self._counted(request, page, ask),
            media_type="text/event-stream",
            headers={"X-Accel-Buffering": "no"},
        )

    async def region(self, request: Request) -> Response:
        """Return the region of a page, for a browser that no stream reaches."""
        page, ask = await self._watched(request)
        version = await self._live.read(_key(page, ask), lambda: page.load(ask))
        if version.error is not None:
            raise _http_error(version.error)
        return HTMLResponse(self._rendered(request, page, ask, version, self._look(request)))

    async def _watched(self, request: Request) -> tuple[Page, Ask]:
        """Return the page that a request is about, by its parameter `page`, and what it asks."""
        address = urlsplit(_path_here(request.query_params.get("page", "/")))
        here = f"{address.path}?{address.query}" if address.query else address.path
        found = self._page_at(unquote(address.path))
        if found is None or not found[0].is_live:
            raise HTTPException(404, "no such page")
        page, place = found
        request.scope["progressor_page"] = here
        try:
            return page, await self._ask(self._session(request), place, _query_of(address.query))
        except errors.ProgressorError as error:
            raise _http_error(error) from error

    async def _counted(self, request: Request, page: Page, ask: Ask) -> AsyncIterator[str]:
        browser = _browser_of(self._session(request))
        self._streams[browser] += 1
        try:
            async with contextlib.aclosing(self._versions(request, page, ask)) as versions:
                async for text in versions:
                    yield text
        finally:
            self._streams[browser] -= 1
            self._streams += collections.Counter()

    async def _versions(self, request: Request, page: Page, ask: Ask) -> AsyncGenerator[str]:
        look, sent, session = self._look(request), "", self._session(request)
        watched = self._live.watch(_key(page, ask), lambda: page.load(ask))
        async with contextlib.aclosing(watched) as versions:
            async for version in versions:
                if session is not None and not await self._goes_on(session):
                    return
                if version.facts is None:
                    yield _event("stale", {"why": str(version.error)})
                    continue
                if not await self._is_still(session, ask):
                    return
                shown = self._rendered(request, page, ask, version, look)
                if shown != sent:
                    sent = shown
                    yield _message(shown)
                else:
                    yield _event("beat", {})

    async def _goes_on(self, session: Session) -> bool:
        """Return whether a session is open; the tokens of its login are kept fresh."""
        try:
            if isinstance(session.token, Login):
                await session.token.renew()
        except access_errors.UnauthenticatedError:
            return False
        return self._sessions.is_open(session)

    async def _is_still(self, session: Session | None, ask: Ask) -> bool:
        """Return whether a visitor still is who they were; others may watch the same page."""
        try:
            token = None if session is None else session.token
            return await self._clients.identity(token) == ask.identity
        except errors.ProgressorError:
            return False

    def _rendered(
        self, request: Request, page: Page, ask: Ask, version: Version, look: Look
    ) -> str:
        known = version.rendered.get(look)
        if known is None:
            facts = self._facts(request, page, ask, version.facts or {})
            known = self._templates.render(page.template, look.words, facts)
            if len(version.rendered) < _LOOKS_KEPT_MAX:
                version.rendered[look] = known
        return known

    def _page_at(self, path: str) -> tuple[Page, Mapping[str, Any]] | None:
        for route, page in self._routes:
            match, scope = route.matches({"type": "http", "path": path, "method": "GET"})
            if match is Match.FULL:
                return page, scope["path_params"]
        return None

    # --- Who visits

    async def login(self, request: Request) -> Response:
        error: errors.ProgressorError | None = None
        if request.method == "POST":
            form = await _form_of(request)
            token = form.get("token", "").strip()
            session = self._session(request)
            if session is None or not self._is_own(request, session, form):
                return RedirectResponse(self._links.to("/login"), status_code=303)
            try:
                identity = await self._clients.check(token)
            except (errors.ProgressorError, ValueError) as caught:
                error = _as_ours(caught)
            else:
                await self._end(session)
                onward = self._links.to(_path_here(form.get("onward", "/")))
                response: Response = RedirectResponse(onward, status_code=303)
                # An engine without access control needs none.
                opened = self._sessions.open(token if identity.is_access_controlled else None)
                self._keep(request, response, opened)
                return response
        session = self._session(request) or self._sessions.open()
        onward = _path_here(request.query_params.get("onward", "/"))
        status = 200 if error is None else 401
        return self._login_page(request, session, onward, error=error, status=status)

    def _login_page(
        self, request: Request, session: Session, onward: str, *, error: object, status: int
    ) -> Response:
        facts = {
            **self._facts(request, PAGES[0], None, {}),
            "region": "login.html",
            # Not the address that the issuer has sent the browser to, which has a code in it.
            "here": f"/login?{urlencode({'onward': onward})}",
            "session": session,
            "notes": [],
            "action": None,
            "error": error,
            "onward": onward,
        }
        text = self._templates.render("layout.html", self._look(request).words, facts)
        response = HTMLResponse(text, status_code=status)
        self._remember(request, response, session)
        return response

    async def begin_login(self, request: Request) -> Response:
        """Send the browser to the issuer.

        By a link, not a form: the Content-Security-Policy would have to list, for forms, all sites
        to which the issuer sends the browser in turn.
        """
        onward = _path_here(request.query_params.get("onward", "/"))
        if self._logins is None or not is_from_here(request, self._options):
            return RedirectResponse(self._links.to("/login", {"onward": onward}), status_code=303)
        session = self._session(request) or self._sessions.open()
        try:
            begun, address = await self._logins.begin(self._callback(request), onward)
        except LoginFailedError as error:
            return self._login_failed(request, session, onward, error)
        session.begun = begun
        response = RedirectResponse(address, status_code=303)
        self._remember(request, response, session)
        return response

    async def finish_login(self, request: Request) -> Response:
        """Take the browser back from the issuer."""
        if self._logins is None:
            return await self.not_found(request)
        session = self._session(request) or self._sessions.open()
        begun = session.take_begun()
        onward = "/" if begun is None else begun.onward
        try:
            login = await self._logins.finish(begun, request.query_params)
        except LoginFailedError as failed:
            return self._login_failed(request, session, onward, failed)
        try:
            identity = await self._clients.check(login)
        except (errors.ProgressorError, ValueError) as caught:
            login.forget()
            error = _as_ours(caught)
            status = _status_of(error)
            return self._login_page(request, session, onward, error=error, status=status)
        await self._end(session)
        response = RedirectResponse(self._links.to(onward), status_code=303)
        # An engine without access control needs none.
        opened = self._sessions.open(login if identity.is_access_controlled else None)
        self._keep(request, response, opened)
        return response

    def _login_failed(
        self, request: Request, session: Session, onward: str, error: LoginFailedError
    ) -> Response:
        why = self._look(request).words(error.text, **error.values)
        return self._login_page(request, session, onward, error=why, status=error.status)

    def _callback(self, request: Request) -> str:
        """Return the address to which the issuer sends the browser back."""
        here = f"{request.url.scheme}://{request.url.netloc}"
        origin = self._options.public_url.removesuffix("/") or here
        return f"{origin}{self._links.to('/login/callback')}"

    async def logout(self, request: Request) -> Response:
        session = self._session(request)
        form = await _form_of(request)
        if session is not None and self._is_own(request, session, form):
            await self._end(session)
        return RedirectResponse(self._links.to("/login"), status_code=303)

    async def _end(self, session: Session) -> None:
        """Forget a session, and its token unless another session uses it."""
        self._sessions.end(session.session_id)
        if session.token is not None and not self._sessions.has(session.token):
            await self._clients.forget(session.token)

    async def preferences(self, request: Request) -> Response:
        """Keep the language, the time zone and the theme in cookies, which hold nothing secret."""
        form = await _form_of(request)
        if not is_from_here(request, self._options):
            raise invalid("form", "was sent by another site")
        onward = self._links.to(_path_here(form.get("onward", "/")))
        response = RedirectResponse(onward, status_code=303)
        valid = {
            "language": form.get("language") in LANGUAGES,
            "theme": form.get("theme") in _THEMES,
            "zone": is_zone(form.get("zone", "")),
        }
        for name, is_valid in valid.items():
            if is_valid:
                self._set_cookie(request, response, f"{COOKIE}_{name}", form[name], _YEAR_SECONDS)
        return response

    def _look(self, request: Request) -> Look:
        def kept(name: str) -> str:
            return request.cookies.get(f"{COOKIE}_{name}", "")

        language, zone, theme = kept("language"), kept("zone"), kept("theme")
        if language not in LANGUAGES:
            language = language_of(request.headers.get("accept-language", ""))
        return Look(
            words=Words(language, zone if zone and is_zone(zone) else "UTC"),
            theme=theme if theme in _THEMES else "system",
        )

    def _is_own(self, request: Request, session: Session, form: Mapping[str, str]) -> bool:
        return is_own_form(request, self._options, session, form.get("form_token", ""))

    def _session(self, request: Request) -> Session | None:
        return self._sessions.find(request.cookies.get(COOKIE, ""))

    def _remember(self, request: Request, response: Response, session: Session) -> None:
        """Have the browser keep the session of a page.

        Not by the answer to a form: browsers send none of our cookies with one that comes from
        another site, which then would replace the session of a visitor.
        """
        if request.method != "POST":
            self._keep(request, response, session)

    def _keep(self, request: Request, response: Response, session: Session) -> None:
        seconds = int(LIFETIME_MAX.total_seconds())
        self._set_cookie(request, response, COOKIE, session.session_id, seconds)

    def _set_cookie(
        self, request: Request, response: Response, name: str, value: str, seconds: int
    ) -> None:
        response.set_cookie(
            name,
            value,
            max_age=seconds,
            path=f"{self._links.base}/",
            secure="https" in {request.url.scheme, urlsplit(self._options.public_url).scheme},
            httponly=True,
            samesite="lax",
        )

    def _to_login(self, request: Request) -> Response:
        onward = _here(request, self._links.base)
        return RedirectResponse(self._links.to("/login", {"onward": onward}), status_code=303)


def _browser_of(session: Session | None) -> str:
    return "" if session is None else session.session_id


def _check(action: Action, entered: Entered) -> None:
    """Refuse a form that cannot be right, before the engine is asked."""
    ask = entered.ask
    is_open = ask.identity.is_access_controlled or ask.options.allows_actions
    if ask.options.is_read_only or not is_open:
        raise invalid("do", "this console only reads")
    if action.warning and entered.values.get("confirmation", "") != action.confirmed(ask):
        raise invalid("confirmation", f"must be {action.confirmed(ask)!r}")
    for field in action.fields:
        if field.is_required and not entered.text(field.name):
            raise invalid(field.name, "must not be empty")


def _offered(page: Page, ask: Ask, facts: Mapping[str, Any]) -> list[Action]:
    namespace = ask.place.get("namespace") or ask.one("namespace")
    return [it for it in page.actions if ask.may(it.right, namespace) and it.fits(facts)]


def _here(request: Request, base: str) -> str:
    """Return the address of the page of a request, or that a stream is about, under the base."""
    of_stream = request.scope.get("progressor_page")
    if of_stream is not None:
        return str(of_stream)
    raw: bytes = request.scope.get("raw_path") or request.scope["path"].encode()
    path = raw.decode("latin-1").partition("?")[0].removeprefix(base) or "/"
    return f"{path}?{request.url.query}" if request.url.query else path


def _object_of(request: Request, base: str, page: Page) -> str:
    """Return the address of what a page is about, without anything else in its query."""
    path, _, query = _here(request, base).partition("?")
    found = {name: it for name, it in parse_qs(query).items() if name in page.parameters}
    return f"{path}?{urlencode(found, doseq=True)}" if found else path


def _path_here(address: str) -> str:
    """Return an address within the console; "/" for one that leads elsewhere."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return "/"
    is_ours = address.startswith("/") and not address.startswith(("//", "/\\"))
    return address if is_ours and not parts.netloc and "\\" not in address else "/"


def _query_of(text: str) -> Query:
    try:
        found = parse_qs(text, max_num_fields=_QUERY_FIELDS_MAX)
    except ValueError as error:
        raise invalid("query", f"must have at most {_QUERY_FIELDS_MAX} parameters") from error
    return {name: tuple(values) for name, values in found.items()}


def _key(page: Page, ask: Ask) -> Hashable:
    """Return what is equal for watchers who see the same."""
    query = tuple(sorted((name, values) for name, values in ask.query.items() if name != "do"))
    # By their client as well: another token of the same identity may end before theirs.
    return (page.path, ask.client, ask.identity, tuple(sorted(ask.place.items())), query)


async def _form_of(request: Request, bytes_max: int = SMALL_FORM_BYTES_MAX) -> dict[str, str]:
    """Return the fields of a form.

    Raises:
        InvalidRequestError: It is too large, or none.
    """
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > bytes_max:
                raise invalid("form", f"must have at most {bytes_max:,} bytes")
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_FIELDS_MAX))
    except ClientDisconnect:
        return {}
    except ValueError as error:
        raise invalid("form", "cannot be read") from error


def _message(text: str) -> str:
    lines = "\n".join(f"data: {line}" for line in text.splitlines())
    return f"{lines}\n\n"


def _event(name: str, data: Mapping[str, str]) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


def _as_ours(error: Exception) -> errors.ProgressorError:
    return error if isinstance(error, errors.ProgressorError) else invalid("token", str(error))


_STATUSES: tuple[tuple[type[errors.ProgressorError], int], ...] = (
    (errors.NotFoundError, 404),
    (access_errors.UnauthenticatedError, 401),
    (access_errors.PermissionDeniedError, 403),
    (errors.InvalidRequestError, 400),
    (errors.StorageError, 503),
    (EngineUnavailableError, 503),
    (errors.DeadlineExceededError, 504),
    (errors.RequestError, 409),
)
"""Of HTTP, by the class of an error, the first that fits."""


def _http_error(error: errors.ProgressorError) -> HTTPException:
    return HTTPException(_status_of(error), str(error))


def _status_of(error: errors.ProgressorError) -> int:
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), 502)
