"""The log of a real `progressor serve`: its form, its lines, and how it is changed."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest_asyncio
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from progressor import errors
from progressor.cli.main import main
from progressor.sdk import BYTES, Client, LogLevel, NamespaceConfig
from progressor.v1.processor_service_pb2 import Complete
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.process import ReplicaProcess, running_process
from tests.support.engine.replica import answering, broken, refusal, unavailable
from tests.support.postgres.proxy import running_proxy
from tests.support.processor.scripted import Answer, ScriptedProcessor, Step
from tests.support.telemetry.collector import running_collector

SECRET = b"not-for-the-log"
TRACE_ID = 0x0AF7651916CD43DD8448EB211C80319C
STATES = (
    "process runs", "process broke", "process repaired", "process finished", "process removed",
)  # fmt: skip

_numbers = itertools.count(1)


@contextlib.contextmanager
def traced(trace_id: int = TRACE_ID, *, sampled: bool = False) -> Iterator[str]:
    """Call with a trace; yield its id as it appears in a log."""
    flags = TraceFlags(TraceFlags.SAMPLED if sampled else TraceFlags.DEFAULT)
    context = SpanContext(trace_id, 0xB7AD6B7169203331, is_remote=False, trace_flags=flags)
    with trace.use_span(NonRecordingSpan(context)):
        yield trace.format_trace_id(trace_id)


@pytest_asyncio.fixture
async def processor() -> AsyncIterator[ScriptedProcessor]:
    async with ScriptedProcessor() as processor:
        yield processor


@contextlib.asynccontextmanager
async def client_of(log: ReplicaProcess, processor: ScriptedProcessor) -> AsyncIterator[Client]:
    """Return a client of a namespace for the processor, on the replica that writes the log."""
    address, name = log.address, f"told-{next(_numbers)}"
    async with Client(address, namespace=name, codec=BYTES, timeout=PATIENCE_SECONDS) as client:
        config = NamespaceConfig(name=name, processor_targets=(processor.target,))
        await client.namespaces.create(config)
        yield client


async def lived(client: Client, processor: ScriptedProcessor, *, repair: Step) -> None:
    """Bring a process through all its states, with a retry, and a call that changes none."""
    words = SECRET.decode()
    processor.on_process(
        "p",
        answering(SECRET, response=SECRET, aux_state=SECRET),
        unavailable(words),
        answering(SECRET),
        broken(words),
        repair,
        answering(complete=Complete(result=SECRET)),
    )
    await client.start("p", SECRET)
    await client.call("p", SECRET, context={"key": words}, idempotency_key="once")
    await refusal(client.call("p", SECRET))
    await client.repair("p", SECRET)
    await client.call("p", SECRET)
    await client.remove("p")


class TestAChangeOfAProcessesState:
    async def test_is_one_line_with_its_ids_and_the_callers_trace(
        self, database: str, tmp_path: Path, processor: ScriptedProcessor
    ) -> None:
        async with (
            running_collector() as receiver,
            running_process(
                database, tmp_path, {"telemetry.otlp_endpoint": receiver.endpoint}, log=True
            ) as log,
        ):
            async with client_of(log, processor) as client:
                with traced() as trace_id:
                    await lived(client, processor, repair=answering(SECRET))
            async with client_of(log, processor) as client_traced:
                with traced(sampled=True):
                    await lived(client_traced, processor, repair=answering())
            lines = [it for it in await log.ended() if it["event"] in STATES]
            told = {it.span_id: it.name for it in receiver.spans}

        untraced, within = lines[: len(STATES)], lines[len(STATES) :]
        for group, name in (untraced, client.namespace), (within, client_traced.namespace):
            assert [line["event"] for line in group] == list(STATES)
            assert {(it["namespace"], it["process_id"]) for it in group} == {(name, "p")}
            assert {it["trace_id"] for it in group} == {trace_id}
            levels = [it["level"] for it in group]
            assert levels == ["info", "warning", "info", "info", "info"]
        assert untraced[0]["task_id"] == processor.requests[0].task.task_id
        assert (untraced[1]["task_type"], untraced[1]["reason"]) == ("call", "BROKEN")
        assert {told[it["span_id"]] for it in within} == {
            "progressor.settle", "progressor.v1.ProcessService/Remove",
        }  # fmt: skip
        assert not any("span_id" in it for it in untraced)

    async def test_by_a_simple_repair_or_a_put_is_told_too(
        self, database: str, tmp_path: Path, processor: ScriptedProcessor
    ) -> None:
        async with running_process(database, tmp_path, log=True) as log:
            async with client_of(log, processor) as client:
                processor.on_process("p", Answer(), broken())
                await client.start("p")
                await refusal(client.call("p"))
                await client.simple_repair("p")
                await client.put("q")
            told = [
                (it["event"], it["process_id"])
                for it in await log.ended()
                if it["event"] in {"process repaired", "process imported"}
            ]

        assert told == [("process repaired", "p"), ("process imported", "q")]


class TestTheForm:
    async def test_is_json_where_nobody_looks_on_also_for_lines_of_grpcs_core(
        self, database: str, tmp_path: Path
    ) -> None:
        settings, verbose = {"log.format": "auto"}, {"GRPC_VERBOSITY": "info"}
        async with running_process(
            database, tmp_path, settings, environment=verbose, log=True
        ) as log:
            lines = await log.ended()

        events = [line["event"] for line in lines]
        order = [
            "engine listening", "connected to PostgreSQL", "engine serves", "draining",
            "engine stopped",
        ]  # fmt: skip
        assert [it for it in events if it in order] == order
        assert {"engine does not serve", "engine serving again"}.isdisjoint(events)
        assert events[-1] == "engine stopped"
        assert all({"level", "logger", "timestamp"} <= line.keys() for line in lines)
        assert "grpc_core" in {line["logger"] for line in lines}

    async def test_is_for_people_where_that_is_asked_for(
        self, database: str, tmp_path: Path
    ) -> None:
        settings = {"log.format": "console"}
        async with running_process(database, tmp_path, settings, log=True) as log:
            log.terminate()
            await log.left()

        [serves] = [it for it in log.text.splitlines() if "engine serves" in it]
        assert "[info" in serves
        assert not serves.startswith("{")


class TestRepetition:
    async def test_is_counted_and_nothing_of_it_lost(
        self, database: str, tmp_path: Path, processor: ScriptedProcessor
    ) -> None:
        count = 100
        async with running_process(database, tmp_path, log=True) as log:
            async with client_of(log, processor) as client, asyncio.TaskGroup() as group:
                for number in range(count):
                    group.create_task(client.start(f"p{number}"), name=f"start {number}")
            await log.ended()

        lines = log.logged("process runs")
        repeated = [line["repeated"] for line in lines if "repeated" in line]
        assert len(lines) - len(repeated) + sum(repeated) == count
        assert repeated
        # Of no other message were there so many that any was held back.
        assert {it["event"] for it in log.records if "repeated" in it} == {"process runs"}


class TestTheLevel:
    async def test_is_changed_on_the_command_line_while_it_runs(
        self, database: str, tmp_path: Path, processor: ScriptedProcessor
    ) -> None:
        async with running_process(database, tmp_path, log=True) as log:
            async with client_of(log, processor) as client:
                await set_level(log, "warning")
                await client.start("unheard")
                await set_level(log, "info")
                await client.start("heard")
                await log.log_record("process runs")
            lines = log.logged("process runs")

        assert [line["process_id"] for line in lines] == ["heard"]
        assert [it["level_set"] for it in log.logged("log level changed")] == ["warning", "info"]

    async def test_is_as_before_when_its_time_is_over(
        self, database: str, tmp_path: Path, processor: ScriptedProcessor
    ) -> None:
        async with (
            running_process(database, tmp_path, log=True) as log,
            client_of(log, processor) as client,
        ):
            await client.replicas.set_log_level(LogLevel.ERROR, lasting=1)
            await log.log_record("log level changed", 2)
            await client.start("heard")
            await log.log_record("process runs", process_id="heard")

        assert [it["level_set"] for it in log.logged("log level changed")] == ["error", "info"]


async def set_level(log: ReplicaProcess, level: str) -> None:
    """Ask the replica for a level, as an operator does."""
    arguments = ["log-level", level, "--address", log.address]
    assert await asyncio.to_thread(main, arguments) == 0


async def get(client: Client) -> None:
    """Ask for a process that does not exist, again and again until there is an answer."""
    with contextlib.suppress(errors.ProcessNotFoundError):
        await client.get("p")


async def test_a_request_that_storage_fails_is_told_with_the_callers_trace(
    database: str, tmp_path: Path, processor: ScriptedProcessor
) -> None:
    with running_proxy(database) as proxy:
        async with (
            running_process(proxy.conninfo, tmp_path, log=True) as log,
            client_of(log, processor) as client,
        ):
            proxy.refuse()
            async with asyncio.TaskGroup() as group:
                with traced() as trace_id:
                    group.create_task(get(client), name="get")
                line = await log.log_record("storage is unavailable", method="Get")
                proxy.restore()

    assert (line["method"], line["trace_id"]) == ("Get", trace_id)
