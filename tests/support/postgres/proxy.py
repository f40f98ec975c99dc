"""A proxy to PostgreSQL that fails as networks and servers do, at a statement of one's choice.

It runs in a thread with an event loop of its own, so that it goes on where the engine's loop is
held up, and can be told from anywhere. A `Fault` is armed by a piece of the statement's text; the
first execution that has it in it is struck, or the n-th::

    with running_proxy(conninfo) as proxy:
        lost = proxy.arm(cut_after("settle_tasks("))
        ...
        await lost.struck()

A connection that was stalled stays so after its client has given it up: what the client has sent
still arrives, as it does from the buffers of a network.
"""

import asyncio
import collections
import contextlib
import dataclasses
import socket
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn, TypeVar, assert_never

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.faults.faults import Fault, Kind
from tests.support.postgres.wire import (
    GOODBYE,
    Answers,
    Opening,
    Piece,
    Turn,
    Turns,
    refusal,
    size_of_opening,
)

T = TypeVar("T")

_CHUNK_BYTES = 64 * 1024


class Proxy:
    """A way to a PostgreSQL; `running_proxy` opens one. Its methods may be called in any thread."""

    def __init__(self, conninfo: str, *, pretends: bool = False) -> None:
        """Tell clients another backend's number, as poolers do, if it `pretends`."""
        given = conninfo_to_dict(conninfo)
        self._server = conninfo
        self.pretends = pretends
        self._host, self._port = str(given["host"]), int(given.get("port") or 5432)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._listener: asyncio.Server | None = None
        self._own_port = 0
        self._faults: list[Fault] = []
        self._links: set[_Link] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._flowing = asyncio.Event()
        self._refuses = False
        self._given_up_count = 0
        self._gave_up = threading.Condition()

    @property
    def conninfo(self) -> str:
        return make_conninfo(
            self._server,
            host="127.0.0.1",
            port=self._own_port,
            sslmode="disable",
            gssencmode="disable",
        )

    @property
    def given_up_count(self) -> int:
        """How often a client gave up; see `gave_up`."""
        return self._given_up_count

    def start(self) -> None:
        self._thread.start()
        self._do(self._flowing.set)
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(PATIENCE_SECONDS)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(PATIENCE_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def arm(self, fault: Fault) -> Fault:
        self._do(lambda: self._faults.append(fault))
        return fault

    def cut(self) -> None:
        self._do(self._cut)

    def refuse(self) -> None:
        """Break every connection, and each new one, until `restore`."""
        self._do(self._refuse)

    def stall(self) -> None:
        """Pass nothing on any more, both ways, on old connections and new ones."""
        self._do(self._flowing.clear)

    def half_open(self) -> None:
        """Pass nothing on any more on the connections there are, until `restore`.

        So it is after a host on the way has gone without a word: only new ones lead anywhere.
        """
        self._do(self._half_open)

    def restore(self) -> None:
        """End all that was done here: what is held back goes on, faults are forgotten."""
        self._do(self._restore)

    async def gave_up(self, count: int) -> None:
        """Wait until clients have lost their patience `count` times in all.

        That is seen from outside: one asks for its statement to be cancelled, or hangs up on a
        connection that stalls.
        """

        def wait() -> bool:
            with self._gave_up:
                return self._gave_up.wait_for(
                    lambda: self._given_up_count >= count, PATIENCE_SECONDS
                )

        if not await asyncio.to_thread(wait):
            message = f"clients gave up {self._given_up_count} times of {count}"
            raise TimeoutError(message)

    def _do(self, work: Callable[[], T]) -> T:
        async def done() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result(PATIENCE_SECONDS)

    async def _listen(self) -> None:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self._own_port = self._listener.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        assert self._listener is not None, "closed after it was started"
        self._listener.close()
        self._restore()
        self._cut()
        if self._serving:
            await asyncio.wait(self._serving)
        await self._listener.wait_closed()
        await self._loop.shutdown_default_executor()

    def _cut(self) -> None:
        for link in tuple(self._links):
            link.cut()

    def _refuse(self) -> None:
        self._refuses = True
        self._cut()

    def _half_open(self) -> None:
        for link in self._links:
            link.flowing.clear()

    def _restore(self) -> None:
        self._refuses = False
        self._faults.clear()
        self._flowing.set()
        for link in self._links:
            link.flowing.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "called by a server in a task"
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        if self._refuses:
            writer.transport.abort()
            return
        link = _Link(self, _End(reader, writer))
        self._links.add(link)
        try:
            # Whichever end hangs up, in the middle of a message or not: so does the other.
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await link.run()
        finally:
            link.cut()
            self._links.discard(link)

    async def connect(self) -> "_End":
        if self._host.startswith("/"):
            return _End(*await asyncio.open_unix_connection(f"{self._host}/.s.PGSQL.{self._port}"))
        return _End(*await asyncio.open_connection(self._host, self._port))

    async def flow(self) -> None:
        await self._flowing.wait()

    def fault_for(self, turn: Turn) -> Fault | None:
        return next((fault for fault in self._faults if fault.matches(turn)), None)

    def note_given_up(self) -> None:
        with self._gave_up:
            self._given_up_count += 1
            self._gave_up.notify_all()

    async def terminate(self, backend: int) -> None:
        def end() -> None:
            with psycopg.connect(self._server, autocommit=True) as connection:
                connection.execute("SELECT pg_terminate_backend(%s, 5000)", [backend])

        await asyncio.to_thread(end)


@contextlib.contextmanager
def running_proxy(conninfo: str, *, pretends: bool = False) -> Iterator[Proxy]:
    proxy = Proxy(conninfo, pretends=pretends)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()


@dataclasses.dataclass(frozen=True, slots=True)
class _End:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def __post_init__(self) -> None:
        connection = self.writer.get_extra_info("socket")
        if connection.family == socket.AF_INET:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def cut(self) -> None:
        self.writer.transport.abort()


@dataclasses.dataclass(slots=True)
class _Asked:
    """A turn under way: the fault of its answer, or an answer that never was the server's."""

    fault: Fault | None = None
    answer: bytes = b""


class _CutError(ConnectionError):
    """A fault has struck: the connection is gone."""


class _Link:
    """One connection of a client, and the one behind it to the server."""

    def __init__(self, proxy: Proxy, client: _End) -> None:
        self.flowing = asyncio.Event()
        self.flowing.set()
        self._proxy = proxy
        self._client = client
        self._server: _End | None = None
        self._turns = Turns()
        self._answers = Answers(pretends=proxy.pretends)
        self._asked: collections.deque[_Asked] = collections.deque()
        self._held = b""
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue()

    def cut(self) -> None:
        self.flowing.set()
        self._client.cut()
        if self._server is not None:
            self._server.cut()

    async def run(self) -> None:
        opening = await self._opening()
        if opening.is_cancel:
            self._proxy.note_given_up()
        await self._proxy.flow()
        self._server = server = await self._proxy.connect()
        await server.send(opening.packet)
        self._asked.append(_Asked())
        listening = asyncio.ensure_future(self._listen())
        upward = asyncio.ensure_future(self._pass_up(server))
        downward = asyncio.ensure_future(self._pass_down(server))
        try:
            # A client that has hung up is not heard any more; what it has said goes on its way.
            await asyncio.wait({upward, downward}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            left = {listening, upward, downward}
            for each in left:
                each.cancel()
            await asyncio.wait(left)
        ends = [passed.exception() for passed in (upward, downward) if not passed.cancelled()]
        for end in ends:
            if end is not None:
                raise end

    async def _opening(self) -> Opening:
        while True:
            head = await self._client.reader.readexactly(4)
            rest = await self._client.reader.readexactly(size_of_opening(head) - len(head))
            opening = Opening(head + rest)
            if not opening.refusal:
                return opening
            await self._client.send(opening.refusal)

    async def _listen(self) -> None:
        """Read what the client sends, whether or not it is passed on, until it hangs up.

        It may send more, behind what stalls, before it loses its patience.
        """
        chunk, has_left = b"-", False
        while chunk:
            try:
                chunk = await self._client.reader.read(_CHUNK_BYTES)
            except OSError:
                chunk = b""
            if _hangs_up(chunk) and not has_left:
                has_left = True
                if not self.flowing.is_set():
                    self._proxy.note_given_up()
            self._chunks.put_nowait(chunk)

    async def _pass_up(self, server: _End) -> None:
        while chunk := await self._chunks.get():
            for turn in self._turns.feed(chunk):
                await self._flow()
                await self._ask(turn, server)
        # That it has hung up goes the same way.
        await self._flow()

    async def _ask(self, turn: Turn, server: _End) -> None:
        fault = self._proxy.fault_for(turn)
        asked, data = _Asked(), turn.data
        if fault is not None:
            data = await self._fail_request(fault, turn, asked)
        if turn.answered:
            self._asked.append(asked)
        if data:
            await server.send(data)
        await self._answer_refused()

    async def _fail_request(self, fault: Fault, turn: Turn, asked: _Asked) -> bytes:
        """Do to a request what the fault says; return what goes to the server."""
        match fault.kind:
            case Kind.CUT_BEFORE:
                self._strike(fault)
            case Kind.REFUSED:
                asked.answer = refusal(fault.code, f"injected: {fault!r}")
                fault.strike()
            case Kind.TERMINATED:
                # The server hangs up before it says that it has, and this link ends with it.
                fault.strike()
                await self._proxy.terminate(self._answers.backend)
            case Kind.STALLED_BEFORE:
                await self._stall(fault)
                return turn.data
            case Kind.CUT_UNCOMMITTED:
                asked.fault = fault
                return turn.unsynchronised
            case Kind.CUT_AFTER | Kind.CUT_IN | Kind.STALLED_AFTER:
                asked.fault = fault
                return turn.data
            case _:
                assert_never(fault.kind)
        return b""

    async def _pass_down(self, server: _End) -> None:
        while chunk := await server.reader.read(_CHUNK_BYTES):
            for piece in self._answers.feed(chunk):
                await self._flow()
                await self._answer(piece)

    async def _answer(self, piece: Piece) -> None:
        asked = self._asked[0] if self._asked else _Asked()
        if asked.fault is None:
            await self._client.send(piece.data)
        else:
            self._held += piece.data
            await self._fail(asked.fault, piece)
        if piece.ended and self._asked:
            self._asked.popleft()
            await self._answer_refused()

    async def _fail(self, fault: Fault, piece: Piece) -> None:
        """Do to an answer what the fault says, once it is there."""
        if fault.kind is Kind.CUT_UNCOMMITTED and piece.executed:
            await self._client.send(self._held)
            self._strike(fault)
        if not piece.ended:
            return
        if fault.kind is Kind.CUT_IN:
            await self._client.send(self._held[: len(self._held) // 2])
        if fault.kind is Kind.STALLED_AFTER:
            await self._stall(fault)
            held, self._held = self._held, b""
            await self._client.send(held)
            return
        self._strike(fault)

    async def _answer_refused(self) -> None:
        """Send the answers of our own whose turn it is."""
        while self._asked and self._asked[0].answer:
            await self._client.send(self._asked.popleft().answer)

    async def _flow(self) -> None:
        await self.flowing.wait()
        await self._proxy.flow()

    async def _stall(self, fault: Fault) -> None:
        self.flowing.clear()
        fault.strike()
        await self.flowing.wait()

    def _strike(self, fault: Fault) -> NoReturn:
        self.cut()
        fault.strike()
        raise _CutError


def _hangs_up(chunk: bytes) -> bool:
    """Whether a client says goodbye, or has gone without it."""
    return not chunk or chunk.endswith(GOODBYE)
