"""Traces are connected from the caller to the last retry, across all replicas."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import Tracer, format_span_id, format_trace_id

from progressor.sdk import (
    Client,
    Constraints,
    NamespaceConfig,
    Processor,
    Retry,
    Step,
    SyncClient,
)
from progressor.telemetry import names
from tests.support.engine.activities import activity_where, queue_in
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.process import running_process
from tests.support.engine.replica import NOW_AND_THEN, running_replica
from tests.support.processor.scripted import ScriptedProcessor
from tests.support.telemetry.collector import (
    Collector,
    ReceivedSpan,
    children_of,
    running_collector,
    within,
)

NAMESPACE = "shop"
SERVER = "progressor.v1.ProcessService/Call"
NAMESPACE_CREATED = "progressor.v1.NamespaceService/CreateNamespace"
CALL = "progressor.v1.ProcessorService/Process"
TIMER_SECONDS = 2.0
"""Enough for one engine to leave before it is due."""

PARTS = [CALL, "progressor.settle"]


@pytest.fixture
async def receiver() -> AsyncIterator[Collector]:
    async with running_collector() as receiver:
        yield receiver


class Shop:
    """A processor that traces what it does, by the means of OpenTelemetry alone."""

    def __init__(self, tracer: Tracer) -> None:
        self.processor = Processor(NAMESPACE)
        self.expired = asyncio.Event()
        self.holding = asyncio.Event()
        self.released = asyncio.Event()
        self._tracer = tracer
        for handler in (self.init, self.call, self.notify, self.timeout):
            getattr(self.processor, handler.__name__)(handler)

    def init(self, _step: Step[Any]) -> None:
        """Begin."""

    def call(self, step: Step[Any]) -> str:
        """Set a timer; a plain function, so it runs in a thread."""
        with self._tracer.start_as_current_span("reserve"):
            step.set_timer(after=TIMER_SECONDS)
            return "reserved"

    async def notify(self, _step: Step[Any]) -> None:
        """Take so long that another replica has to do it."""
        with self._tracer.start_as_current_span("hold"):
            if not self.holding.is_set():
                self.holding.set()
                await self.released.wait()

    async def timeout(self, step: Step[Any]) -> None:
        """Fail once."""
        with self._tracer.start_as_current_span("expire"):
            if step.attempt == 1:
                message = "the stock does not answer"
                raise Retry(message)
            step.complete()
            self.expired.set()


@contextlib.asynccontextmanager
async def opened(receiver: Collector, *, streaming: bool = True) -> AsyncIterator[tuple[Shop, str]]:
    async with receiver.tracing("shop") as provider:
        shop = Shop(provider.get_tracer("shop"))
        async with shop.processor.running("127.0.0.1:0", streaming=streaming) as target:
            yield shop, target


def traced(receiver: Collector, name: str, *, ratio: float = 0.0) -> dict[str, str]:
    """Return the settings of an engine that traces; others than its callers' by `ratio`."""
    return {
        "telemetry.otlp_endpoint": receiver.endpoint,
        "telemetry.sample_ratio": str(ratio),
        "telemetry.metrics_bind": "off",
        "replica.name": name,
    }


@contextlib.asynccontextmanager
async def client_of(address: str, target: str, *, session: bool = True) -> AsyncIterator[Client]:
    """Return a client for a namespace that is made if it is not there."""
    async with Client(
        address, namespace=NAMESPACE, timeout=PATIENCE_SECONDS, session=session
    ) as client:
        config = NamespaceConfig(
            name=NAMESPACE, processor_targets=(target,), retry_policy=NOW_AND_THEN
        )
        await client.namespaces.create(config)
        yield client


def call_from_a_thread(address: str) -> None:
    """Call as a program without an event loop does."""
    with SyncClient(address, namespace=NAMESPACE, timeout=PATIENCE_SECONDS) as client:
        client.call("p")


def assert_connected(spans: Sequence[ReceivedSpan]) -> None:
    """Assert that they are one trace with one root, every parent and every link in it."""
    known = {span.span_id for span in spans}
    assert len(known) == len(spans)
    assert len({span.trace_id for span in spans}) == 1
    assert len([span for span in spans if not span.parent_id]) == 1
    assert {span.parent_id for span in spans} - {""} <= known
    assert {link for span in spans for link in span.links} <= known


def assert_lasting(step: ReceivedSpan, spans: Sequence[ReceivedSpan]) -> None:
    """Assert that the parts of a step lie in it, one after the other."""
    parts = children_of(step, [span for span in spans if span.name != "progressor.step"])
    assert all(within(part, step) for part in parts)
    assert all(before.ended_at <= after.started_at for before, after in itertools.pairwise(parts))
    assert 0 < sum(part.nanoseconds for part in parts) <= step.nanoseconds


def assert_about_the_process(step: ReceivedSpan, spans: Sequence[ReceivedSpan]) -> None:
    """Assert that a search for a process, a task or an attempt finds the step and its parts."""
    parts = [it for it in children_of(step, spans) if it.name != "progressor.step"]
    names = ("namespace", "process_id", "task_id", "task_type", "attempt")
    about = {f"progressor.{name}": step.attributes[f"progressor.{name}"] for name in names}
    assert about["progressor.namespace"] == NAMESPACE
    assert about["progressor.process_id"] == "p"
    assert all(about.items() <= part.attributes.items() for part in parts)


@pytest.mark.parametrize(
    ("way", "streaming"),
    [("session", True), ("unary", False), ("sync", True)],
    ids=["session, stream", "call, call", "thread, stream"],
)
async def test_a_call_and_the_timer_that_it_sets_are_one_story_over_two_replicas(
    own_database: str, receiver: Collector, way: str, streaming: bool
) -> None:
    async with (
        opened(receiver, streaming=streaming) as (shop, target),
        receiver.tracing("till") as till,
    ):
        first, second = traced(receiver, "first"), traced(receiver, "second")
        async with (
            running_replica(own_database, first) as replica,
            client_of(replica.address, target, session=way == "session") as client,
        ):
            await client.start("p")
            with till.get_tracer("till").start_as_current_span("checkout"):
                if way == "sync":
                    await asyncio.to_thread(call_from_a_thread, replica.address)
                else:
                    await client.call("p")
        assert not shop.expired.is_set()
        async with running_replica(own_database, second) as replica:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await shop.expired.wait()
            await replica.points.wait("settled", settlement="Finish")

    spans = receiver.spans
    assert_connected(spans)
    (root,) = receiver.named("checkout")
    (server,) = receiver.named(SERVER)
    called, failed, retried = receiver.named("progressor.step")
    assert [it.instance.split(":")[0] for it in (called, failed, retried)] == [
        "first", "second", "second",
    ]  # fmt: skip
    assert [server.parent_id, called.parent_id] == [root.span_id, server.span_id]
    assert [it.name for it in children_of(server, spans)] == ["progressor.admit", "progressor.step"]
    for each in (failed, retried):
        assert (each.parent_id, each.links) == (called.span_id, (called.span_id,))
        assert [it.name for it in children_of(each, spans)] == ["progressor.claim", *PARTS]
    for each, name in (called, "reserve"), (failed, "expire"), (retried, "expire"):
        assert_lasting(each, spans)
        assert_about_the_process(each, spans)
        (asked,) = [it for it in children_of(each, spans) if it.name == CALL]
        (own,) = children_of(asked, spans)
        assert (own.name, within(own, asked)) == (name, True)

    assert [it.attributes["progressor.attempt"] for it in (called, failed, retried)] == [1, 1, 2]
    assert [it.failed for it in (called, failed, retried)] == [False, True, False]
    assert within(server, root)
    assert all(within(it, server) for it in children_of(server, spans))
    waited = (failed.started_at - called.ended_at) / 1e9
    assert TIMER_SECONDS / 2 < waited < TIMER_SECONDS + PATIENCE_SECONDS
    for each in (failed, retried):
        lateness = each.attributes["progressor.lateness_ms"]
        assert isinstance(lateness, float)
        assert 0 <= lateness < PATIENCE_SECONDS * 1e3
    (admitted,) = receiver.named("progressor.admit")
    waited_ms = admitted.attributes["progressor.batch_wait_ms"]
    assert isinstance(waited_ms, float)
    assert 0 <= waited_ms * 1e6 <= admitted.nanoseconds
    assert [
        it.attributes["progressor.settlement"] for it in receiver.named("progressor.settle")
    ] == ["finish", "retry", "finish"]


async def test_a_step_that_was_lost_with_its_replica_is_collected_in_its_story(
    own_database: str, receiver: Collector, tmp_path: Path
) -> None:
    async with opened(receiver) as (shop, target), receiver.tracing("till") as till:
        first, second = traced(receiver, "first"), traced(receiver, "second")
        async with (
            running_replica(own_database, second) as replica,
            running_process(own_database, tmp_path, first) as process,
            client_of(process.address, target) as client,
        ):
            await client.start("p")
            with till.get_tracer("till").start_as_current_span("checkout"):
                await client.notify("p")
            async with asyncio.timeout(PATIENCE_SECONDS):
                await shop.holding.wait()
            process.kill()
            await replica.points.wait("zombie_collected")
            await replica.points.wait("settled", settlement="Finish")
            shop.released.set()

    (root,) = receiver.named("checkout")
    (collected,) = receiver.named("progressor.collect")
    (retried,) = receiver.named("progressor.step")
    assert {span.trace_id for span in receiver.spans} == {root.trace_id}
    assert len([span for span in receiver.spans if not span.parent_id]) == 1
    assert collected.parent_id == retried.parent_id != root.span_id
    assert collected.attributes["progressor.cause"] == "silent"
    assert collected.attributes["progressor.settlement"] == "retry"
    assert [it.attributes["progressor.attempt"] for it in (collected, retried)] == [1, 2]


async def test_a_step_says_what_its_task_waited_for_before(
    own_database: str, receiver: Collector
) -> None:
    mutex = Constraints(gates={"stock": 1})
    async with (
        opened(receiver) as (shop, target),
        running_replica(own_database, traced(receiver, "always", ratio=1.0)) as replica,
        client_of(replica.address, target) as client,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        await client.start("holder")
        await client.notify("holder", constraints=mutex)
        await shop.holding.wait()
        await client.start("p")
        async with asyncio.TaskGroup() as group:
            group.create_task(client.call("p", constraints=mutex))
            await activity_where(client, lambda it: queue_in(it, NAMESPACE).gate_count == 1)
            shop.released.set()

    steps = receiver.named("progressor.step")
    (call,) = [it for it in steps if it.attributes["progressor.task_type"] == "call"]
    (claim,) = [it for it in receiver.named("progressor.claim") if it.parent_id == call.span_id]
    (admitted,) = [
        it for it in receiver.named("progressor.admit") if it.parent_id == call.parent_id
    ]
    spent = {key: it for key, it in call.attributes.items() if ".spent." in key}
    assert [*spent] == [*names.SPENT]
    assert spent.items() <= claim.attributes.items()
    waited = [spent[name] for name in names.SPENT]
    assert all(isinstance(part, int) for part in waited)
    assert [waited[place] for place in (0, 1, 2, 5)] == [0, 0, 0, 0]
    gates, available = waited[3], waited[4]
    assert isinstance(gates, int)
    assert isinstance(available, int)
    assert gates > 0
    assert (gates + available) * 1000 <= claim.ended_at - admitted.started_at
    # No other span has what it does not have.
    others = [it for it in steps if it.attributes["progressor.task_type"] == "init"]
    assert len(others) == 2
    assert not any(".spent." in key for it in others for key in it.attributes)


async def test_without_a_tracing_caller_the_ratio_decides_once_for_the_whole_trace(
    own_database: str, receiver: Collector
) -> None:
    always = traced(receiver, "always", ratio=1.0)
    async with (
        opened(receiver) as (shop, target),
        running_replica(own_database, always) as replica,
        client_of(replica.address, target) as client,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        await client.start("p")
        await client.notify("p")
        await shop.holding.wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(client.call("p"))
            await replica.points.wait("admitted", 3)
            shop.released.set()

    spans = receiver.spans
    [start] = receiver.named("progressor.v1.ProcessService/Start")
    assert start.parent_id == ""
    assert [it.name for it in children_of(start, spans)] == ["progressor.admit", "progressor.step"]
    steps = {it.attributes["progressor.task_type"]: it for it in receiver.named("progressor.step")}
    assert [it.name for it in children_of(steps["init"], spans)] == PARTS
    # The call says behind which task of its process it waited.
    behind = steps["notify"].attributes["progressor.task_id"]
    assert steps["call"].attributes["progressor.waited_for"] == ["process"]
    assert steps["call"].attributes["progressor.behind_task_id"] == behind
    assert "progressor.waited_for" not in steps["init"].attributes


async def test_of_a_story_that_is_not_traced_nothing_is_told(
    own_database: str, receiver: Collector
) -> None:
    async with (
        opened(receiver) as (_, target),
        running_replica(own_database, traced(receiver, "never")) as replica,
        client_of(replica.address, target) as client,
    ):
        await client.start("p")
        await client.call("p")

    assert {span.name for span in receiver.spans} == {"reserve"}


async def test_a_caller_who_is_not_traced_is_not_asked_again_by_the_ratio(
    own_database: str, receiver: Collector
) -> None:
    always = traced(receiver, "always", ratio=1.0)
    provider = TracerProvider(sampler=ALWAYS_OFF, shutdown_on_exit=False)
    async with (
        running_replica(own_database, always) as replica,
        ScriptedProcessor() as processor,
        client_of(replica.address, processor.target) as client,
    ):
        with provider.get_tracer("till").start_as_current_span("checkout") as span:
            await client.start("p")

    (request,) = processor.requests
    caller = span.get_span_context()
    carried = request.task.trace_context["traceparent"]
    assert not caller.trace_flags.sampled
    assert carried.startswith(
        f"00-{format_trace_id(caller.trace_id)}-{format_span_id(caller.span_id)}-"
    )
    assert {it.name for it in receiver.spans} == {NAMESPACE_CREATED}
