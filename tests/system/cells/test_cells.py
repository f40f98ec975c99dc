"""An engine with two cells: each namespace lives in one, and a client does not need to know."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import psycopg
import pytest
import pytest_asyncio

from progressor import errors
from progressor.sdk import Client, NamespaceConfig
from progressor.v1 import (
    process_service_pb2,
    process_service_pb2_grpc,
    replica_service_pb2,
    replica_service_pb2_grpc,
)
from tests.conftest import TEMPLATE
from tests.support.engine.cells import Cells, Living, living, open_cells, running_cells
from tests.support.engine.replica import Replica, answering, refusal
from tests.support.postgres.cluster import Cluster

pytestmark = pytest.mark.asyncio(loop_scope="module")

FIRST_ID_OF_B = 2**52


@pytest.fixture(scope="module")
def cells(cluster: Cluster) -> Iterator[Cells]:
    with open_cells(cluster, TEMPLATE) as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(cells: Cells) -> AsyncIterator[Replica]:
    async with running_cells(cells) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def here(replica: Replica) -> AsyncIterator[Living]:
    async with living(replica, "here", "main") as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def there(replica: Replica) -> AsyncIterator[Living]:
    async with living(replica, "there", "b") as found:
        yield found


def _names(conninfo: str) -> set[str]:
    with psycopg.connect(conninfo) as connection:
        found = connection.execute("SELECT name FROM progressor.namespaces").fetchall()
    return {name for (name,) in found if not name.startswith("progressor.")}


@pytest.mark.parametrize("session", [False, True])
async def test_each_request_goes_to_the_cell_of_its_namespace(
    cells: Cells, replica: Replica, session: bool
) -> None:
    names = {"main": f"own-{session:d}", "b": f"other-{session:d}"}
    for cell, name in names.items():
        async with living(replica, name, cell, session=session) as it:
            it.processor.on_process("one", answering(b"event"), answering())
            started = await it.client.start("one")
            called = await it.client.call("one")

            assert (started.task_id > FIRST_ID_OF_B) == (cell == "b")
            assert called.task_id > started.task_id
            assert (await it.client.get("one")).process.last_event_id == 1
            assert (await it.client.namespaces.get(name)).cell == cell
        assert name in _names(cells.databases[cell])
        [other] = set(names) - {cell}
        assert name not in _names(cells.databases[other])


async def test_ids_of_two_cells_never_meet(here: Living, there: Living) -> None:
    for it in (here, there):
        it.processor.on_process("ids", answering())
    low, high = await here.client.start("ids"), await there.client.start("ids")

    assert low.task_id < FIRST_ID_OF_B < high.task_id < 2**53


async def test_the_emptiest_cell_takes_a_new_namespace(
    here: Living, there: Living, replica: Replica
) -> None:
    async with Client(replica.address) as client:
        for number in range(10):
            there.processor.on_process(f"fill-{number}", answering())
            await there.client.start(f"fill-{number}")
        await client.namespaces.create(
            NamespaceConfig(name="anywhere", processor_targets=("unix:/nowhere",))
        )
        found = await client.namespaces.get("anywhere")
        await client.namespaces.delete("anywhere")

    assert here.client.namespace != found.name
    assert found.cell == "main"


async def test_a_name_is_taken_in_all_cells(replica: Replica, there: Living) -> None:
    async with Client(replica.address) as client:
        for cell in ("main", "b", ""):
            described = NamespaceConfig(
                name=there.client.namespace, processor_targets=("unix:/nowhere",), cell=cell
            )
            with pytest.raises(errors.NamespaceAlreadyExistsError):
                await client.namespaces.create(described)


async def test_a_cell_that_there_is_not_is_refused_and_takes_no_name(replica: Replica) -> None:
    async with Client(replica.address) as client:
        described = NamespaceConfig(name="lost", processor_targets=("unix:/nowhere",), cell="c")
        with pytest.raises(errors.InvalidRequestError) as caught:
            await client.namespaces.create(described)
        with pytest.raises(errors.NamespaceNotFoundError):
            await client.namespaces.get("lost")

    assert [(it.field, it.description) for it in caught.value.violations] == [
        ("namespace.cell", "must be one of main, b, got 'c'")
    ]


async def test_a_list_of_all_namespaces_shows_each_process_once(
    replica: Replica, here: Living, there: Living
) -> None:
    wanted = {(it.client.namespace, f"listed-{n}") for it in (here, there) for n in range(7)}
    for it in (here, there):
        for number in range(7):
            it.processor.on_process(f"listed-{number}", answering())
            await it.client.start(f"listed-{number}")
    request = process_service_pb2.ListRequest(page_size=3)
    request.filter.id_prefix = "listed-"
    seen: list[tuple[str, str]] = []
    async with grpc.aio.insecure_channel(replica.address) as channel:
        stub: Any = process_service_pb2_grpc.ProcessServiceStub(channel)
        while True:
            page = await stub.List(request)
            assert len(page.processes) <= 3
            seen += [(it.namespace, it.process_id) for it in page.processes]
            request.page_token = page.next_page_token
            if not page.next_page_token:
                break
        counted = await stub.Count(process_service_pb2.CountRequest(filter=request.filter))
        request.page_token = "c~anything"
        refused = await refusal(stub.List(request))

    assert sorted(seen) == sorted(wanted)
    assert counted.count == len(wanted)
    [violation] = refused.violations
    assert violation.field == "page_token"
    assert violation.description == "must be a page token that this list returned"


async def test_namespaces_are_listed_in_the_order_of_their_names(
    replica: Replica, here: Living, there: Living
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for number in range(6):
            cell = ("main", "b")[number % 2]
            await stack.enter_async_context(living(replica, f"order-{number}", cell))
        found = [it async for it in here.client.namespaces.list(page_size=2)]
        for number in range(6):
            await here.client.namespaces.delete(f"order-{number}")

    names = [it.name for it in found if not it.name.startswith("progressor.")]
    assert names == sorted({*names, "here", "there"})
    assert [it.cell for it in found if it.name.startswith("order-")] == ["main", "b"] * 3
    del there


async def test_replicas_activity_and_doctor_cover_both_cells(
    replica: Replica, here: Living, there: Living
) -> None:
    listed = [it async for it in here.client.replicas.list(page_size=1)]
    activity = await here.client.replicas.activity()
    async with grpc.aio.insecure_channel(replica.address) as channel:
        stub: Any = replica_service_pb2_grpc.ReplicaServiceStub(channel)
        examined = await stub.RunDoctor(replica_service_pb2.RunDoctorRequest())

    assert [it.cell for it in listed] == ["main", "b"]
    assert [it.cell for it in activity.replicas] == ["main", "b"]
    assert {it.namespace for it in activity.queues} >= {"here", "there"}
    assert {it.cell for it in examined.findings} == {"main", "b"}
    del there
