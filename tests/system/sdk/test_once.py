"""`step.once`, `extend` and `keep_alive` in handlers, on a stream and by StepService."""

import asyncio
import collections
import contextlib
import dataclasses
import datetime as dt
import itertools
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import psycopg
import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration

from progressor.sdk import (
    Client,
    LeaseLostError,
    ProcessFailedError,
    Processor,
    Step,
)
from progressor.sdk.processor import links
from progressor.v1 import step_service_pb2 as pb
from progressor.v1.step_service_pb2_grpc import StepServiceStub
from tests.support.engine.replica import NOW_AND_THEN, Replica, refusal, running_replica

pytestmark = pytest.mark.asyncio(loop_scope="module")

LINKS = pytest.mark.parametrize("streaming", [True, False], ids=["stream", "service"])
KINDS = pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
SHORT = dt.timedelta(milliseconds=300)
PATIENCE_SECONDS = 30.0
_numbers = itertools.count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(database: str) -> AsyncIterator[Replica]:
    async with running_replica(database) as replica:
        yield replica


@dataclasses.dataclass
class Outside:
    """What is outside of the engine: it counts what was done, by a word."""

    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)

    def do(self, word: str) -> dict[str, int]:
        self.counts[word] += 1
        return {word: self.counts[word]}

    async def do_async(self, word: str) -> dict[str, int]:
        await asyncio.sleep(0)
        return self.do(word)


@contextlib.asynccontextmanager
async def served(
    replica: Replica,
    handler: Callable[[Step[Any]], Any],
    *,
    streaming: bool = True,
    engine: str | None = "",
    **options: Any,
) -> AsyncIterator[Client]:
    """Serve a handler of calls, and yield a client of its namespace with a process "p".

    `engine` is the address that the processor is given; "": the replica's.
    """
    processor: Processor[Any] = Processor(f"once-{next(_numbers)}")
    processor.init(lambda _: None)
    processor.call(handler)
    processor.repair(lambda _: None)
    engine = replica.address if engine == "" else engine
    options = {"retry_policy": NOW_AND_THEN, **options}
    async with (
        processor.running("127.0.0.1:0", streaming=streaming, engine=engine) as address,
        replica.namespace(processor.name, address, **options) as client,
    ):
        await client.start("p")
        yield client


def once(step: Step[Any], outside: Outside, word: str, is_async: bool) -> Any:
    if is_async:
        return step.once(word, outside.do_async, word, type=dict[str, int])
    return step.blocking.once(word, outside.do, word, type=dict[str, int])


@KINDS
@LINKS
async def test_the_next_attempt_gets_the_result_and_runs_the_function_no_more(
    replica: Replica, streaming: bool, is_async: bool
) -> None:
    outside, attempts = Outside(), []

    def finish(step: Step[Any], found: object) -> object:
        attempts.append(step.attempt)
        if step.attempt < 3:
            raise KeyError("a bug of the handler")
        return found

    async def in_turns(step: Step[Any]) -> Any:
        paid = await once(step, outside, "pay", True)
        return finish(step, [paid, await once(step, outside, "send", True)])

    def plain(step: Step[Any]) -> Any:
        paid = once(step, outside, "pay", False)
        return finish(step, [paid, once(step, outside, "send", False)])

    async with served(replica, in_turns if is_async else plain, streaming=streaming) as client:
        answer = await client.call("p")

    assert answer.response == [{"pay": 1}, {"send": 1}]
    assert (attempts, outside.counts) == ([1, 2, 3], {"pay": 1, "send": 1})


@LINKS
async def test_a_retry_of_what_broke_does_not_pay_again(replica: Replica, streaming: bool) -> None:
    outside, has_bug = Outside(), True

    async def pay(step: Step[Any]) -> Any:
        receipt = await step.once("pay", outside.do, "pay")
        if has_bug:
            raise KeyError("a bug of the handler")
        return receipt

    async with served(replica, pay, streaming=streaming) as client:
        with pytest.raises(ProcessFailedError) as caught:
            await client.call("p")
        has_bug = False
        await client.retry("p")
        assert caught.value.task_id is not None
        answer = await client.await_task("p", task_id=caught.value.task_id)
        next_call = await client.call("p")

    assert (answer.response, outside.counts) == ({"pay": 1}, {"pay": 2})
    assert next_call.response == {"pay": 2}


@LINKS
async def test_one_result_too_many_is_refused_before_its_function_runs(
    replica: Replica, streaming: bool
) -> None:
    errors: list[str] = []

    async def many(step: Step[Any]) -> None:
        for number in range(256):
            await step.once(f"k{number}", lambda: None)
        try:
            await step.once("over", pytest.fail, "it is not run")
        except ValueError as error:
            errors.append(str(error))

    async with served(replica, many, streaming=streaming) as client:
        await client.call("p")

    assert errors == ["step.once: the task has the results of 256 keys, which is the maximum"]


@KINDS
@LINKS
@pytest.mark.parametrize("result", ["x" * 200, "x" * 20_000_000, {1, object}])
async def test_a_result_that_can_never_be_stored_is_not_tried_again(
    replica: Replica, result: object, streaming: bool, is_async: bool
) -> None:
    paid: list[int] = []

    def pay(step: Step[Any]) -> object:
        paid.append(step.attempt)
        return result

    async def charge(step: Step[Any]) -> None:
        await step.once("pay", pay, step)

    def charge_plain(step: Step[Any]) -> None:
        step.blocking.once("pay", pay, step)

    handler: Callable[[Step[Any]], Any] = charge if is_async else charge_plain
    async with served(replica, handler, streaming=streaming, payload_bytes_max=100) as client:
        with pytest.raises(ProcessFailedError) as caught:
            await client.call("p")

    assert caught.value.failure_reason == "RESULT_NOT_STORED"
    assert caught.value.detail.startswith("step.once: the result of the key 'pay' ")
    assert paid == [1]


async def test_a_step_in_a_call_of_its_own_says_that_it_needs_the_engine(replica: Replica) -> None:
    outside = Outside()

    async def pay(step: Step[Any]) -> None:
        await step.once("pay", outside.do, "pay")

    async with served(replica, pay, streaming=False, engine=None) as client:
        with pytest.raises(ProcessFailedError) as caught:
            await client.call("p")

    assert 'serve(..., engine="host:port")' in caught.value.detail
    assert outside.counts == {}


@KINDS
async def test_large_steps_store_results_by_the_stream(replica: Replica, is_async: bool) -> None:
    """A step of more than 1 MiB comes in a call of its own, for its args or its memos."""
    outside, large = Outside(), "x" * 600_000

    def finish(step: Step[Any], found: list[object]) -> object:
        if step.attempt < 3:
            raise KeyError("a bug of the handler")
        return found

    async def work(step: Step[Any]) -> object:
        results = [await step.once(key, lambda: large) for key in ("a", "b")]
        moved = await step.extend(60)
        paid = await once(step, outside, f"pay-{step.attempt}", True)
        return finish(step, [*map(len, results), paid, moved == step.deadline])

    def plain(step: Step[Any]) -> object:
        results = [step.blocking.once(key, lambda: large) for key in ("a", "b")]
        moved = step.blocking.extend(60)
        paid = once(step, outside, f"pay-{step.attempt}", False)
        return finish(step, [*map(len, results), paid, moved == step.deadline])

    handler: Callable[[Step[Any]], Any] = work if is_async else plain
    async with served(replica, handler, engine=None) as client:
        answers = [(await client.call("p", args)).response for args in ("", "x" * 1_500_000)]

    assert answers == [[600_000, 600_000, {"pay-3": count}, True] for count in (1, 2)]
    assert outside.counts == {f"pay-{attempt}": 2 for attempt in (1, 2, 3)}


@KINDS
@pytest.mark.parametrize("wrong", ["nothing", "a processor"])
async def test_no_function_runs_while_its_result_cannot_be_stored(
    replica: Replica, is_async: bool, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "PROBE_SECONDS_MAX", 0.2)
    monkeypatch.setattr(links, "PROBE_SECONDS_MIN", 0.1)
    outside, attempts = Outside(), []

    async def work(step: Step[Any]) -> None:
        attempts.append(step.attempt)
        await once(step, outside, "pay", True)

    def plain(step: Step[Any]) -> None:
        attempts.append(step.attempt)
        once(step, outside, "pay", False)

    other: Processor[Any] = Processor("other")
    other.call(lambda _: None)
    handler: Callable[[Step[Any]], Any] = work if is_async else plain
    async with other.running("127.0.0.1:0") as processor_address:
        engine = "127.0.0.1:1" if wrong == "nothing" else processor_address
        async with served(replica, handler, streaming=False, engine=engine) as client:
            with pytest.raises(ProcessFailedError) as caught:
                await client.call("p")

    assert caught.value.failure_reason == "EngineUnavailableError"
    assert caught.value.detail.startswith(f"no engine could be reached at {engine}: ")
    assert "step.once has not run its function: check the argument `engine`" in caught.value.detail
    assert (attempts, outside.counts) == ([1, 2, 3], {})


@KINDS
@LINKS
async def test_a_step_that_extends_its_deadline_outlasts_its_timeout(
    replica: Replica, streaming: bool, is_async: bool
) -> None:
    moved: list[bool] = []

    async def work(step: Step[Any]) -> int:
        before = step.deadline
        deadline = await step.extend(60)
        moved.append(before < deadline == step.deadline)
        await asyncio.sleep(3 * SHORT.total_seconds())
        return step.attempt

    def plain(step: Step[Any]) -> int:
        before = step.deadline
        deadline = step.blocking.extend(60)
        moved.append(before < deadline == step.deadline)
        threading.Event().wait(3 * SHORT.total_seconds())
        return step.attempt

    handler: Callable[[Step[Any]], Any] = work if is_async else plain
    async with served(replica, handler, streaming=streaming, step_timeout=SHORT) as client:
        answer = await client.call("p")

    assert (answer.response, moved) == (1, [True])


@LINKS
async def test_no_step_outlasts_the_longest_timeout_of_its_namespace(
    replica: Replica, streaming: bool
) -> None:
    ended: list[str] = []

    async def work(step: Step[Any]) -> None:
        try:
            async with step.keep_alive(0.05):
                await asyncio.sleep(PATIENCE_SECONDS)
        except (asyncio.CancelledError, LeaseLostError) as error:
            ended.append(type(error).__name__)
            raise

    longest: dict[str, Any] = {"step_timeout": SHORT, "step_timeout_max": 3 * SHORT}
    async with served(replica, work, streaming=streaming, **longest) as client:
        with pytest.raises(ProcessFailedError) as caught:
            await client.call("p")

    assert caught.value.failure_reason == "STEP_TIMEOUT"
    assert ended == ["CancelledError"] * 3


@KINDS
@LINKS
async def test_a_step_that_is_kept_alive_outlasts_its_timeout(
    replica: Replica, streaming: bool, is_async: bool
) -> None:
    """Also where its own timeout is at first further ahead than what is asked for."""

    async def work(step: Step[Any]) -> int:
        async with step.keep_alive(0.06):
            await asyncio.sleep(4 * SHORT.total_seconds())
        return step.attempt

    def plain(step: Step[Any]) -> int:
        with step.blocking.keep_alive(0.06):
            threading.Event().wait(4 * SHORT.total_seconds())
        return step.attempt

    handler: Callable[[Step[Any]], Any] = work if is_async else plain
    async with served(replica, handler, streaming=streaming, step_timeout=SHORT) as client:
        answer = await client.call("p")

    assert answer.response == 1


@KINDS
@LINKS
async def test_a_handler_whose_lease_another_has_stores_nothing(
    replica: Replica, database: str, streaming: bool, is_async: bool
) -> None:
    outside, errors = Outside(), []
    begun, is_stolen = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def note(error: LeaseLostError) -> None:
        errors.append(error.reason)

    async def work(step: Step[Any]) -> Any:
        if step.attempt == 1 and not is_stolen.is_set():
            # An engine that has not answered would find this out before the function runs.
            await step.extend(60)
            begun.set()
            await asyncio.to_thread(is_stolen.wait, PATIENCE_SECONDS)
        try:
            return await once(step, outside, "pay", True)
        except LeaseLostError as error:
            note(error)
            raise

    def plain(step: Step[Any]) -> Any:
        if step.attempt == 1 and not is_stolen.is_set():
            step.blocking.extend(60)
            loop.call_soon_threadsafe(begun.set)
            assert is_stolen.wait(PATIENCE_SECONDS)
        try:
            return once(step, outside, "pay", False)
        except LeaseLostError as error:
            note(error)
            raise

    async with served(replica, work if is_async else plain, streaming=streaming) as client:
        task_id = (await client.call("p", accept_only=True)).task_id
        async with asyncio.timeout(PATIENCE_SECONDS):
            await begun.wait()
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(
                "UPDATE progressor.running SET token = nextval('progressor.lease_tokens')"
                " WHERE namespace = %s",
                [client.namespace],
            )
        is_stolen.set()
        # The replica finds a lease that no worker has, and hands the task back.
        answer = await client.await_task("p", task_id=task_id)

    assert errors == ["LEASE_LOST"]
    assert (answer.response, outside.counts) == ({"pay": 2}, {"pay": 2})


@KINDS
@LINKS
async def test_a_cancelled_step_raises_in_its_handler(
    replica: Replica, streaming: bool, is_async: bool
) -> None:
    outside, ended = Outside(), []
    begun, is_cancelled, has_ended = asyncio.Event(), threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    async def work(_: Step[Any]) -> None:
        begun.set()
        try:
            await asyncio.sleep(PATIENCE_SECONDS)
        except asyncio.CancelledError as error:
            ended.append(type(error).__name__)
            raise
        finally:
            has_ended.set()

    def plain(step: Step[Any]) -> None:
        loop.call_soon_threadsafe(begun.set)
        assert is_cancelled.wait(PATIENCE_SECONDS)
        try:
            # The cancellation is on its way.
            while True:
                step.blocking.extend(1)
        except LeaseLostError as error:
            ended.append(type(error).__name__)
            once(step, outside, "late", False)
        finally:
            loop.call_soon_threadsafe(has_ended.set)

    async with served(replica, work if is_async else plain, streaming=streaming) as client:
        task_id = (await client.call("p", accept_only=True)).task_id
        async with asyncio.timeout(PATIENCE_SECONDS):
            await begun.wait()
            await client.cancel("p", task_id=task_id)
            is_cancelled.set()
            await has_ended.wait()

    expected = "CancelledError" if is_async else "LeaseLostError"
    assert (ended, outside.counts) == ([expected], {})


async def test_the_service_names_each_field_that_is_at_fault(replica: Replica) -> None:
    async with (
        served(replica, lambda _: None) as client,
        grpc.aio.insecure_channel(replica.address) as channel,
    ):
        stub = StepServiceStub(channel)
        key = {"namespace": client.namespace, "process_id": "p"}
        lease: dict[str, Any] = {**key, "task_id": 1, "token": 1}
        found = [
            await refusal(stub.Remember(pb.RememberRequest())),
            await refusal(stub.Remember(pb.RememberRequest(**lease, key="k" * 257))),
            await refusal(stub.Extend(pb.ExtendRequest(**lease, by=Duration(seconds=-1)))),
            await refusal(stub.Extend(pb.ExtendRequest(**lease | {"namespace": "none"}))),
            await refusal(stub.Remember(pb.RememberRequest(**lease, key="k"))),
            await refusal(stub.Extend(pb.ExtendRequest(**lease, by=Duration(seconds=1)))),
        ]

    assert [(it.reason, [each.field for each in it.violations]) for it in found] == [
        ("INVALID_REQUEST", ["namespace", "process_id", "task_id", "token", "key"]),
        ("INVALID_REQUEST", ["key"]),
        ("INVALID_REQUEST", ["by"]),
        ("INVALID_REQUEST", ["by"]),
        ("LEASE_LOST", []),
        ("LEASE_LOST", []),
    ]


async def test_a_plain_handler_whose_step_timed_out_stores_nothing_more(replica: Replica) -> None:
    outside, errors = Outside(), []
    ended = threading.Event()

    def work(step: Step[Any]) -> str:
        if step.attempt == 1:
            threading.Event().wait(4 * SHORT.total_seconds())
            try:
                step.blocking.once("late", outside.do, "late")
            except LeaseLostError as error:
                errors.append(error.reason)
            finally:
                ended.set()
        return "done"

    policy = dataclasses.replace(NOW_AND_THEN, attempts_max=1000)
    async with served(replica, work, step_timeout=SHORT, retry_policy=policy) as client:
        answer = await client.call("p")
        assert await asyncio.to_thread(ended.wait, PATIENCE_SECONDS)

    assert (answer.response, errors, outside.counts) == ("done", ["LEASE_LOST"], {})
