"""Somebody who visits a console: HTTP with cookies, forms and live streams, and no scripts."""

import asyncio
import contextlib
import dataclasses
import http.cookies
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode, urljoin, urlsplit

import h11

from tests.support.console.html import Element, Form, read_html

PATIENCE_SECONDS = 30.0
_REDIRECTS = {301, 302, 303, 307, 308}
_CHUNK_BYTES = 65_536


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """A response; the names of its headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    text: str
    address: str

    @property
    def page(self) -> Element:
        return read_html(self.text)

    @property
    def region(self) -> Element:
        """What a live page replaces."""
        return self.page.one(id="region")


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """What a live stream sent: ``message`` has a region, ``stale`` why there is none now."""

    name: str
    data: str

    @property
    def region(self) -> Element:
        return read_html(self.data)

    @property
    def facts(self) -> Mapping[str, str]:
        return dict(json.loads(self.data))


class Visitor:
    """One browser: what it was told to remember, and the headers that it always sends."""

    def __init__(self, address: str, headers: Mapping[str, str] | None = None) -> None:
        self.address = address
        self.cookies: dict[str, str] = {}
        self.headers = dict(headers or {})

    async def get(
        self, path: str, query: Mapping[str, Any] | None = None, **headers: str
    ) -> Answer:
        """Return the answer to a GET; the path is below the console's address."""
        return await self._ask("GET", self._url(path, query), headers=headers)

    async def post(self, path: str, fields: Mapping[str, str], **headers: str) -> Answer:
        return await self._ask("POST", self._url(path), urlencode(fields).encode(), headers)

    async def open(self, path: str, query: Mapping[str, Any] | None = None) -> Answer:
        """Return the page at the end of all redirects."""
        return await self._followed(await self.get(path, query))

    async def send(self, form: Form, **fields: str) -> Answer:
        """Fill in a form, send it, and return the page that a browser then shows."""
        return await self._followed(await self.submit(form, **fields))

    async def submit(self, form: Form, **fields: str) -> Answer:
        """Fill in a form, send it, and return the answer itself."""
        values = {**form.fields, **fields}
        empty = sorted(it for it in form.required if not values.get(it))
        assert not empty, f"a browser does not send a form without {empty}"
        url = urljoin(self.address, form.action)
        if form.method == "get":
            return await self._ask("GET", f"{url}?{urlencode(values)}")
        return await self._ask("POST", url, urlencode(values).encode())

    async def follow(self, element: Element) -> Answer:
        """Open a link."""
        url = urljoin(self.address, element["href"])
        return await self._followed(await self._ask("GET", url))

    @contextlib.asynccontextmanager
    async def live(self, page: str) -> AsyncIterator["Stream"]:
        """Watch a page: its path and query, below the console's address."""
        async with self.live_at(self._url("live", {"page": page})) as stream:
            yield stream

    @contextlib.asynccontextmanager
    async def live_at(self, url: str) -> AsyncIterator["Stream"]:
        """Watch a page by the address of its stream."""
        url = urljoin(self.address, url)
        async with self._connected(url) as connection:
            response = await connection.ask("GET", url, self._sent({"accept": "text/event-stream"}))
            assert response.status_code == 200, response
            yield Stream(connection)

    def _url(self, path: str, query: Mapping[str, Any] | None = None) -> str:
        behind = f"?{urlencode(query, doseq=True)}" if query else ""
        return f"{self.address}{path.removeprefix('/')}{behind}"

    async def _followed(self, answer: Answer) -> Answer:
        while answer.status in _REDIRECTS:
            url = urljoin(answer.address, answer.headers["location"])
            answer = await self._ask("GET", url)
        return answer

    async def _ask(
        self, method: str, url: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        async with asyncio.timeout(PATIENCE_SECONDS), self._connected(url) as connection:
            response = await connection.ask(method, url, self._sent(headers or {}), body)
            text = "".join([it.decode() async for it in connection.data()])
        found = [(name.decode(), value.decode()) for name, value in response.headers]
        self._remember([value for name, value in found if name == "set-cookie"])
        return Answer(response.status_code, dict(found), text, url)

    def _sent(self, headers: Mapping[str, str]) -> dict[str, str]:
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return {**({"cookie": cookie} if cookie else {}), **self.headers, **given}

    def _remember(self, cookies: list[str]) -> None:
        for text in cookies:
            for name, morsel in http.cookies.SimpleCookie(text).items():
                self.cookies[name] = morsel.value
                if morsel["max-age"] == "0":
                    del self.cookies[name]

    @contextlib.asynccontextmanager
    async def _connected(self, url: str) -> AsyncIterator["_Connection"]:
        parts = urlsplit(url)
        assert parts.hostname is not None
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        try:
            yield _Connection(reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._http = h11.Connection(h11.CLIENT)

    async def ask(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes = b""
    ) -> h11.Response:
        parts = urlsplit(url)
        target = quote(parts.path, safe="/%:@!$&'()*+,;=~") + (
            f"?{parts.query}" if parts.query else ""
        )
        sent = {
            "host": parts.netloc,
            "connection": "close",
            "content-length": str(len(body)),
            **({"content-type": "application/x-www-form-urlencoded"} if body else {}),
            **headers,
        }
        request = h11.Request(method=method, target=target, headers=list(sent.items()))
        self._writer.write(self._http.send(request) or b"")
        if body:
            self._writer.write(self._http.send(h11.Data(data=body)) or b"")
        self._writer.write(self._http.send(h11.EndOfMessage()) or b"")
        response = await self._next()
        assert isinstance(response, h11.Response), response
        return response

    async def data(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes."""
        while isinstance(event := await self._next(), h11.Data):
            yield bytes(event.data)

    async def _next(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(_CHUNK_BYTES))
        return event


class Stream:
    """The events of a live page."""

    def __init__(self, connection: _Connection) -> None:
        self._data, self._text = connection.data(), ""

    async def next(self) -> Event:
        """Return the next event.

        Raises:
            StopAsyncIteration: The console has ended the stream.
        """
        async with asyncio.timeout(PATIENCE_SECONDS):
            while "\n\n" not in self._text:
                self._text += (await anext(self._data)).decode()
        text, _, self._text = self._text.partition("\n\n")
        lines = [line.partition(":") for line in text.split("\n")]
        fields = [(name, value.removeprefix(" ")) for name, _, value in lines]
        data = "\n".join(value for name, value in fields if name == "data")
        return Event(next((it for name, it in fields if name == "event"), "message"), data)

    async def message(self) -> Event:
        """Return the next event that has a region."""
        while (event := await self.next()).name != "message":
            pass
        return event
