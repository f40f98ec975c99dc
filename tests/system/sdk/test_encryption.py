"""Encrypted payloads through the engine: none is in the database, and everything works."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import psycopg
import pytest
import pytest_asyncio
from psycopg import sql

from progressor.sdk import (
    JSON,
    BulkKind,
    Client,
    Codec,
    Encrypted,
    Every,
    Fail,
    Graph,
    IdempotencyKeyReusedError,
    Keys,
    NewEvent,
    NewTimer,
    ProcessFailedError,
    Processor,
    ProcessStatus,
    ScheduledJob,
    ScheduledStart,
    ScheduleSpec,
    Step,
    TaskType,
)
from progressor.sdk.client.schedules import Target
from tests.support.engine.replica import NOW_AND_THEN, Replica, running_replica
from tests.support.processor.rehearsed import comes_to

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEYS = Keys({"2026-11": os.urandom(32)})
HOUR = 3600
_numbers = itertools.count(1)

PLACES = {
    "start", "call", "notify", "repair", "state", "event", "answer", "result", "timer", "memo",
    "message", "reply", "put-state", "put-event", "put-timer", "put-result", "node", "node-result",
    "led-node", "schedule", "scheduled-node", "bulk", "waiting",
}  # fmt: skip
"""Where payloads are; a word of each is planted, in the processes of one run."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(database: str) -> AsyncIterator[Replica]:
    async with running_replica(database) as replica:
        yield replica


def word(place: str) -> dict[str, str]:
    return {"planted": f"PLANTED-{place}-WORD"}


def stored(conninfo: str, namespace: str) -> set[str]:
    """Return the places whose words stand in the database, in any column of any table."""
    tables = """
        SELECT schemaname, tablename FROM pg_tables
        WHERE schemaname NOT IN ('pg_catalog', 'information_schema')
    """
    found = ""
    with psycopg.connect(conninfo) as connection:
        for schema, table in connection.execute(tables).fetchall():
            rows = sql.SQL("SELECT whole::text FROM {} whole").format(sql.Identifier(schema, table))
            found += "".join(row for (row,) in connection.execute(rows) if namespace in row)
    return {it for it in PLACES if any(form in found for form in _forms(it))}


def _forms(place: str) -> tuple[str, str]:
    plain = word(place)["planted"]
    return plain, plain.encode().hex()


@dataclasses.dataclass
class Scene:
    """A processor that stores a word in each place; ``look`` is called while a step runs."""

    processor: Processor[Any]
    look: Callable[[], Awaitable[None]]
    replied: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        for register in (self.processor.init, self.processor.call, self.processor.notify):
            register(self.take)
        self.processor.repair(self.repair)
        self.processor.reply(self.take_reply)
        self.processor.join(self.join)

    async def take(self, step: Step[Any]) -> Any:
        process_id = step.process_id
        if process_id == "breaks" and step.type is TaskType.CALL:
            raise Fail("so that it can be repaired")
        if process_id == "all" and step.args == word("call"):
            assert await step.once("memo", lambda: word("memo")) == word("memo")
            await self.look()
            step.start("child", word("message"), reply="")
            step.set_timer(after=HOUR, args=word("timer"))
            step.emit(word("event"))
            step.state = word("state")
            return word("answer")
        if process_id == "child":
            step.complete(word("result"))
        if process_id == "leader":
            graph = Graph()
            graph.node("led", word("led-node"))
            step.start_nodes(graph)
        if "/" in process_id:
            step.complete(word("node-result"))
        return None

    async def repair(self, step: Step[Any]) -> None:
        step.state = [*(step.state or []), step.args]

    async def take_reply(self, step: Step[Any]) -> None:
        assert step.reply.response is None or step.reply.response == word("result")
        step.emit([word("reply"), step.reply.response])
        self.replied.set()

    async def join(self, step: Step[Any]) -> None:
        step.complete(list(step.results.values()))


@contextlib.asynccontextmanager
async def scene(
    replica: Replica, codec: Codec, look: Callable[[str], Awaitable[None]]
) -> AsyncIterator[tuple[Client, Scene]]:
    namespace = f"encrypted-{next(_numbers)}"
    processor: Processor[Any] = Processor(namespace, codec=codec)
    playing = Scene(processor, lambda: look(namespace))
    async with (
        processor.running("127.0.0.1:0") as address,
        replica.namespace(namespace, address, retry_policy=NOW_AND_THEN),
        Client(replica.address, namespace=namespace, codec=codec) as client,
    ):
        yield client, playing


async def play(client: Client, playing: Scene) -> None:
    """Send requests of every kind that carries payloads."""
    await client.start("all", word("start"), idempotency_key="start")
    answer = await client.call("all", word("call"), idempotency_key="call")
    assert answer.response == word("answer")
    await playing.replied.wait()
    assert await client.result("child") == word("result")

    await client.notify("all", word("notify"))
    await client.start("breaks")
    with pytest.raises(ProcessFailedError):
        await client.call("breaks")
    await client.repair("breaks", word("repair"))
    snapshot = await client.get("breaks")
    assert snapshot.process.state == [word("repair")]

    await client.put(
        "imported",
        status=ProcessStatus.RUNNING,
        state=word("put-state"),
        history=[NewEvent(payload=word("put-event"))],
        timer=NewTimer(after=HOUR, args=word("put-timer")),
        idempotency_key="put",
    )
    await client.put("done", status=ProcessStatus.FINISHED, result=word("put-result"))
    assert await client.result("done") == word("put-result")

    graph = Graph()
    graph.node("job-node", word("node"))
    await client.jobs.submit("job", graph, idempotency_key="job")
    await client.result("job")
    view = await client.jobs.get("job")
    assert view.nodes[0].result == word("node-result")
    await client.start("leader")
    await client.result("leader")

    scheduled = Graph()
    scheduled.node("later", word("scheduled-node"))
    await schedule(client, "starts", ScheduledStart(word("schedule")))
    found = await schedule(client, "jobs", ScheduledJob(scheduled))
    assert isinstance(found, ScheduledJob)
    assert next(iter(found.graph)).args == word("scheduled-node")

    await client.bulk.start(BulkKind.NOTIFY, word("bulk"), id_prefix="imported")
    await client.namespaces.pause(client.namespace, reason="so that a call waits")
    await client.notify("imported", word("waiting"))


async def schedule(client: Client, schedule_id: str, target: Target) -> Target:
    spec = ScheduleSpec(times=Every(dt.timedelta(days=1)), target=target)
    await client.schedules.create(schedule_id, spec, paused=True)
    return (await client.schedules.get(schedule_id)).schedule.spec.target


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "encrypted"])
async def test_no_payload_is_in_the_database(
    replica: Replica, database: str, is_encrypted: bool
) -> None:
    """The run without encryption shows that each word would be found."""
    seen: set[str] = set()

    async def look(namespace: str) -> None:
        seen.update(await asyncio.to_thread(stored, database, namespace))

    codec: Codec = Encrypted(JSON, keys=KEYS) if is_encrypted else JSON
    async with scene(replica, codec, look) as (client, playing):
        await play(client, playing)
        await look(client.namespace)

    assert seen == (set() if is_encrypted else PLACES)


async def nothing(_: str) -> None: ...


async def test_a_repeated_request_is_known_again_after_a_restart_of_the_client(
    replica: Replica,
) -> None:
    codec = Encrypted(JSON, keys=KEYS)
    async with scene(replica, codec, nothing) as (client, _):
        first = await client.start("p", word("start"), idempotency_key="key")
        async with Client(
            replica.address, namespace=client.namespace, codec=Encrypted(JSON, keys=KEYS)
        ) as again:
            repeated = await again.start("p", word("start"), idempotency_key="key")
            with pytest.raises(IdempotencyKeyReusedError):
                await again.start("p", word("call"), idempotency_key="key")
            for sender in (client, again):
                graph = Graph()
                graph.node("one", word("node"))
                await sender.jobs.submit("job", graph, idempotency_key="key")
                state = word("put-state")
                done = ProcessStatus.FINISHED
                await sender.put("imported", status=done, state=state, idempotency_key="key")

    assert (repeated.task_id, repeated.deduplicated) == (first.task_id, True)


async def test_a_step_waits_for_a_key_that_has_not_arrived_yet(replica: Replica) -> None:
    """Its attempts without the key are not counted, and the process does not break."""
    new = os.urandom(32)
    known = {"old": os.urandom(32)}

    def fetch(key_id: str) -> bytes:
        return known[key_id]

    codec = Encrypted(JSON, keys=Keys.from_function(fetch, encrypt_with="old"))
    sending = Encrypted(JSON, keys=Keys({"new": new, **known}))
    async with (
        scene(replica, codec, nothing) as (client, _),
        Client(replica.address, namespace=client.namespace, codec=sending) as ahead,
    ):
        await client.start("p")
        await ahead.notify("p", word("waiting"))

        async def cause() -> str:
            waits = (await client.get("p")).waits
            return waits[0].cause if waits else ""

        await comes_to("processor_unreachable", cause, replica.points)
        known["new"] = new
        await client.call("p")
        trace = await ahead.trace("p")

    (task,) = (it for it in trace.tasks if it.args == word("waiting"))
    assert task.attempt_count == 1
