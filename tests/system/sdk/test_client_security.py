"""Clients with TLS and tokens: what they send, to whom, and that they follow their files."""

import asyncio
import contextlib
import datetime as dt
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from progressor.api.server.server import Listening
from progressor.sdk import BYTES, Client, EngineUnavailableError, SyncClient, Tls
from progressor.sdk.transport.security import Token
from progressor.wire.tls import Reloaded, TlsMaterial
from tests.support.api.server import build
from tests.support.certificates import Pki

PATIENCE_SECONDS = 60
TOKEN = "prg_1_secret"  # of nobody


class Recorder(grpc.GenericRpcHandler):
    """Records the tokens of all calls, and answers each with an empty message or an end."""

    def __init__(self) -> None:
        self.tokens: dict[str, set[str | None]] = {}

    def service(self, details: Any) -> Any:
        metadata = dict(details.invocation_metadata)
        method = details.method.rpartition("/")[2]
        self.tokens.setdefault(method, set()).add(metadata.get("authorization"))

        async def answer(_request: bytes, _context: object) -> bytes:
            return b""

        async def end(_request: bytes, _context: object) -> AsyncIterator[bytes]:
            yield b""

        if method == "Session":
            return None
        if method == "WatchReplica":
            return grpc.unary_stream_rpc_method_handler(end)
        return grpc.unary_unary_rpc_method_handler(answer)


@pytest.fixture
async def recorder() -> AsyncIterator[tuple[Recorder, str]]:
    recorder, server = Recorder(), grpc.aio.server()
    server.add_generic_rpc_handlers((recorder,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield recorder, f"127.0.0.1:{port}"
    await server.stop(None)


def as_text(_: Path) -> Token:
    return TOKEN


def as_function(_: Path) -> Token:
    return lambda: TOKEN


def as_file(directory: Path) -> Token:
    path = directory / "token"
    path.write_text(f"{TOKEN}\n")
    return path


@pytest.mark.parametrize("given", [as_text, as_function, as_file])
async def test_a_token_goes_with_each_call_and_session(
    recorder: tuple[Recorder, str], given: Callable[[Path], Token], tmp_path: Path
) -> None:
    recorded, address = recorder
    token = given(tmp_path)
    async with Client(address, codec=BYTES, token=token) as client:
        await client.call("1", b"")
        await client.gates.set("gate", 1)

    def block() -> None:
        with SyncClient(address, codec=BYTES, token=token) as client:
            client.notify("1", b"")

    await asyncio.to_thread(block)

    assert {*recorded.tokens} == {"Session", "Call", "SetGate", "Notify"}
    assert {it for tokens in recorded.tokens.values() for it in tokens} == {f"Bearer {TOKEN}"}


@pytest.mark.parametrize("target", ["engine:7420", "10.0.0.1:7420", "dns:///localhost.evil.com:1"])
async def test_a_token_is_not_sent_in_the_clear(target: str, tmp_path: Path) -> None:
    for kind in (Client, SyncClient):
        with pytest.raises(ValueError, match=r"only over TLS.*give tls=Tls"):
            kind(target, token=TOKEN)

    for allowed in (
        "localhost:1",
        "127.0.0.1:1",
        "[::1]:1",
        f"unix:{tmp_path}/a",
        "dns:///localhost:1",
    ):
        await Client(allowed, token=TOKEN).close()
    await Client(target, token=TOKEN, tls=Tls()).close()


@pytest.mark.parametrize("token", ["", "two words", "line\nbreak", "é"])
def test_a_token_that_no_header_can_carry_is_refused_without_its_text(token: str) -> None:
    with pytest.raises(ValueError, match="a token must be") as caught:
        Client("127.0.0.1:1", token=token)

    assert len(token) < 2 or token not in str(caught.value)


def test_files_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    tls = Pki(tmp_path).issue("client")
    with pytest.raises(ValueError, match="certificate and key must be given together"):
        Tls(certificate=tls.certificate)
    with pytest.raises(ValueError, match=r"/nowhere/ca.pem: No such file"):
        Client("127.0.0.1:1", tls=Tls(ca="/nowhere/ca.pem"))
    with pytest.raises(ValueError, match=r"/nowhere/token: No such file"):
        Client("127.0.0.1:1", token=Path("/nowhere/token"))


async def test_clients_use_their_renewed_certificates_without_a_failed_call(
    tmp_path: Path,
) -> None:
    pki = Pki(tmp_path)
    own, issued = pki.issue("server"), pki.issue("client")
    files: Reloaded[TlsMaterial] = Reloaded(own.paths, own.read, name="server")
    files.load()
    age_max = dt.timedelta(seconds=2)
    server = build(Listening(bind=("127.0.0.1:0",), tls=files, connection_age_max=age_max))
    (address,) = await server.start()
    options: dict[str, Any] = {
        "namespace": "orders",
        "codec": BYTES,
        "tls": Tls(ca=issued.ca, certificate=issued.certificate, key=issued.key),
        "repeats": False,
    }
    first, connected = issued.read(), threading.Event()

    def block() -> None:
        with SyncClient(address, **options) as client:
            while client.connection._rpcs is None or client.connection._rpcs.material == first:
                client.call("1", b"hello")
                connected.set()

    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        Client(address, session=False, **options) as unary,
        Client(address, **options) as in_session,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(asyncio.to_thread(block))
        for client in (unary, in_session):
            await client.call("1", b"hello")
        await asyncio.to_thread(connected.wait)
        pki.issue("client")
        rpcs, sessions = unary.connection._rpcs, in_session.connection._sessions
        assert rpcs is not None
        assert sessions is not None
        while unary.connection._rpcs is rpcs or sessions._material == first:
            await unary.call("1", b"hello")
            await in_session.call("1", b"hello")

    await server.drain(dt.timedelta())


async def test_a_connection_that_tls_prevents_says_what_it_needs(tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    files = pki.issue("server")
    loaded: Reloaded[TlsMaterial] = Reloaded(files.paths, files.read, name="server")
    loaded.load()
    cases: list[tuple[Tls | None, Reloaded[TlsMaterial] | None, str]] = [
        (None, loaded, "the other side may expect TLS"),
        (Tls(ca=pki.ca), None, "the other side does not use TLS"),
        (Tls(ca=pki.ca), loaded, "the other side may expect a certificate"),
        (Tls(), loaded, "is not of an authority that is trusted here"),
    ]
    for tls, serving, said in cases:
        server = build(Listening(bind=("127.0.0.1:0",), tls=serving))
        (address,) = await server.start()
        for session in (True, False):
            async with Client(
                address, codec=BYTES, tls=tls, session=session, repeats=False
            ) as client:
                with pytest.raises(EngineUnavailableError, match=said):
                    await client.call("1", b"")
        await server.drain(dt.timedelta())


@pytest.mark.parametrize("token", [TOKEN, None])
async def test_a_token_in_the_clear_goes_through_no_proxy(
    recorder: tuple[Recorder, str], monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    asked = asyncio.Event()

    async def proxy(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        writer.close()

    async with await asyncio.start_server(proxy, "127.0.0.1", 0) as listening:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{_port_of(listening)}")
        async with Client(recorder[1], codec=BYTES, token=token, repeats=False) as client:
            with contextlib.nullcontext() if token else pytest.raises(EngineUnavailableError):
                await client.gates.set("gate", 1)

    assert asked.is_set() == (token is None)


def _port_of(server: asyncio.Server) -> int:
    return int(server.sockets[0].getsockname()[1])
