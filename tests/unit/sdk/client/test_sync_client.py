"""The blocking client: the same methods, for any thread; and the addresses of both clients."""

import asyncio
import inspect
import threading
from unittest import mock

import grpc
import pytest

from progressor import errors, sdk
from progressor.sdk import Client, EngineUnavailableError, Processor, SyncClient
from progressor.sdk.processor.server import running
from progressor.v1 import process_service_pb2 as pb
from tests.unit.sdk.scripted_engine import HANG, refusal, scripted_engine


async def test_only_what_is_safe_is_repeated() -> None:
    away = refusal(grpc.StatusCode.UNAVAILABLE, "STORAGE_UNAVAILABLE")
    async with scripted_engine(away, pb.GetResponse(), away) as engine:
        with SyncClient(engine.address, jitter=lambda: 1.0) as client:
            await asyncio.to_thread(client.get, "p")
            with pytest.raises(errors.StorageUnavailableError):
                await asyncio.to_thread(client.call, "p")

    assert len(engine.requests) == 3


async def test_a_client_that_is_closed_does_not_ask_again() -> None:
    async with scripted_engine(HANG) as engine, asyncio.TaskGroup() as group:
        client = SyncClient(engine.address)
        waiting = group.create_task(asyncio.to_thread(_lost, client))
        await engine.asked.wait()
        await asyncio.to_thread(client.close)
        lost = await waiting

    assert (lost.reason, len(engine.requests)) == ("ENGINE_UNAVAILABLE", 1)


def _lost(client: SyncClient) -> errors.ProgressorError:
    with pytest.raises(EngineUnavailableError) as raised:
        client.get("p")
    return raised.value


async def test_many_threads_share_one_client() -> None:
    count = 4
    together = threading.Barrier(count, timeout=30)
    answers = [pb.CallResponse(task_id=number) for number in range(count)]
    async with scripted_engine(*answers) as engine:
        with SyncClient(engine.address) as client:

            def ask(number: int) -> int:
                together.wait()
                return client.call(f"p{number}").task_id

            async with asyncio.TaskGroup() as group:
                asked = [group.create_task(asyncio.to_thread(ask, n)) for n in range(count)]

    assert sorted(task.result() for task in asked) == list(range(count))
    assert {it.process_id for it in engine.requests} == {f"p{n}" for n in range(count)}


@pytest.mark.parametrize(
    "resource", ["Client", "Processes", "Jobs", "Gates", "Schedules", "Namespaces", "Replicas"]
)
def test_both_clients_have_the_same_methods_with_the_same_arguments(resource: str) -> None:
    def face(of: type) -> dict[str, object]:
        return {
            name: inspect.signature(method)
            for name, method in inspect.getmembers(of, inspect.isfunction)
            if not name.startswith("_") and name != "close"
        }

    assert len(face(getattr(sdk, resource))) >= 3
    assert face(getattr(sdk, resource)) == face(getattr(sdk, f"Sync{resource}"))


def test_both_clients_make_each_resource_once() -> None:
    client, blocking = Client("127.0.0.1:1"), SyncClient("127.0.0.1:1")
    for name in ("jobs", "gates", "schedules", "namespaces", "replicas"):
        assert getattr(client, name) is getattr(client, name)
        assert type(getattr(client, name)).__name__ == name.capitalize()
        assert type(getattr(blocking, name)).__name__ == f"Sync{name.capitalize()}"
    assert client.processes is client
    assert blocking.processes is blocking


@pytest.mark.parametrize("kind", [Client, SyncClient])
def test_a_double_made_of_a_client_has_its_resources(kind: type) -> None:
    names = {"jobs", "gates", "schedules", "namespaces", "replicas", "processes"}

    assert names <= {*dir(kind)}
    assert mock.Mock(spec=kind).jobs is not None


@pytest.mark.parametrize("address", ["127.0.0.1:99999999", "[::1]:65536", "localhost", "[::1]", ""])
async def test_an_address_without_a_port_that_exists_is_refused(address: str) -> None:
    for kind in (Client, SyncClient):
        with pytest.raises(ValueError, match="port"):
            kind(address)
    with pytest.raises(ValueError, match="port"):
        async with running(Processor("orders"), bind=address):
            pass


@pytest.mark.parametrize(
    "address", ["localhost:65535", "[::1]:1", "unix:/run/p", "dns:///name:7420", "ipv4:1.2.3.4:5"]
)
def test_a_client_takes_every_form_that_grpc_does(address: str) -> None:
    Client(address)
