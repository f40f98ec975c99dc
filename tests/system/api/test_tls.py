"""TLS of the server: who gets in, and certificates that are renewed while clients are connected."""

import asyncio
import contextlib
import datetime as dt
import itertools
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from progressor.api.server.server import Listening
from progressor.sdk import BYTES, Client, EngineUnavailableError, Tls
from progressor.wire.tls import Reloaded, TlsFiles, TlsMaterial
from tests.support.api.memory import Memory
from tests.support.api.server import build
from tests.support.certificates import Pki

PATIENCE_SECONDS = 60


@pytest.fixture
def pki(tmp_path: Path) -> Pki:
    return Pki(tmp_path)


def loaded(
    files: TlsFiles, changed: Callable[[TlsMaterial], None] = lambda _: None
) -> Reloaded[TlsMaterial]:
    found = Reloaded(files.paths, files.read, name="server", changed=changed)
    found.load()
    return found


@contextlib.asynccontextmanager
async def serving(listening: Listening, memory: Memory | None = None) -> AsyncIterator[list[str]]:
    server = build(listening, memory)
    addresses = await server.start()
    try:
        yield addresses
    finally:
        await server.drain(dt.timedelta())


def client(address: str, files: TlsFiles, *, session: bool = True) -> Client:
    return Client(
        address,
        namespace="orders",
        codec=BYTES,
        tls=Tls(ca=files.ca, certificate=files.certificate, key=files.key),
        session=session,
        repeats=False,
        timeout=PATIENCE_SECONDS,
    )


async def is_let_in(address: str, files: TlsFiles) -> bool:
    async with client(address, files) as asking:
        try:
            await asking.call("1", b"hello")
        except EngineUnavailableError:
            return False
    return True


async def test_only_clients_with_a_certificate_get_in_but_at_exempt_addresses_and_sockets(
    pki: Pki, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        exempt = f"127.0.0.1:{free.getsockname()[1]}"
    listening = Listening(
        bind=("127.0.0.1:0", exempt, f"unix:{tmp_path}/engine.sock"),
        tls=loaded(pki.issue("server")),
        tls_client_ca_except=(exempt,),
    )
    certified, anonymous = pki.issue("client"), TlsFiles(ca=pki.ca)

    async with serving(listening) as (address, _, path):
        assert await is_let_in(address, certified)
        assert not await is_let_in(address, anonymous)
        assert await is_let_in(exempt, anonymous)
        async with Client(path, namespace="orders", codec=BYTES) as local:
            assert (await local.call("1", b"hello")).response == b"hello"


@pytest.mark.parametrize(
    "rotations", [3, pytest.param(60, marks=pytest.mark.slow, id="for a minute")]
)
async def test_no_call_fails_while_certificates_and_authorities_are_renewed(
    pki: Pki, rotations: int
) -> None:
    renewed, done = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    counts = [0, 0, 0, 0]

    def tell(_: TlsMaterial) -> None:
        loop.call_soon_threadsafe(renewed.set)

    server = loaded(pki.issue("server"), tell)

    async def load(number: int, address: str, files: TlsFiles) -> None:
        async with client(address, files, session=number % 2 == 0) as calling:
            while not done.is_set():
                await calling.call("1", b"hello")
                counts[number] += 1

    # Of files that never change: who uses them stays on the connection that it has.
    tls = first = pki.keep(pki.issue("client"))
    async with (
        serving(Listening(bind=("127.0.0.1:0",), tls=server)) as (address,),
        asyncio.TaskGroup() as group,
    ):
        watching = group.create_task(server.watch())
        for number in range(len(counts)):
            group.create_task(load(number, address, first))
        for _ in range(rotations):
            earlier, before = tls, list(counts)
            pki.renew()
            pki.issue("server")
            tls = pki.keep(pki.issue("client"))
            async with asyncio.timeout(PATIENCE_SECONDS):
                # The look may come when the first of the three files has been renewed.
                while server.content.ca != tls.read().ca:
                    await renewed.wait()
                    renewed.clear()

            assert await is_let_in(address, tls)
            assert not await is_let_in(address, earlier)
            assert all(now > then for now, then in zip(counts, before, strict=True))
        done.set()
        watching.cancel()


async def test_a_bad_file_changes_nothing_for_new_clients(pki: Pki) -> None:
    server = loaded(pki.issue("server"))
    tls = pki.keep(pki.issue("client"))
    async with serving(Listening(bind=("127.0.0.1:0",), tls=server)) as (address,):
        for path, content in itertools.product(server._paths, (b"", b"garbage")):
            path.write_bytes(content)
            server.look()
            server.look()

            assert await is_let_in(address, tls)


async def test_sessions_move_to_new_connections_before_theirs_are_too_old(pki: Pki) -> None:
    listening = Listening(
        bind=("127.0.0.1:0",),
        tls=loaded(pki.issue("server")),
        connection_age_max=dt.timedelta(seconds=4),
    )
    channels = set[object]()
    memory = Memory()
    async with (
        serving(listening, memory) as (address,),
        client(address, pki.issue("client")) as calling,
    ):
        waiting = asyncio.create_task(calling.call("1", b"hang"))
        await memory.requests.asked.wait()
        sessions = calling.connection._sessions
        assert sessions is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(channels) < 2:
                await calling.call("1", b"hello")
                channels.add(sessions._channel)
        memory.requests.release.set()

        assert (await waiting).response == b"hang"
