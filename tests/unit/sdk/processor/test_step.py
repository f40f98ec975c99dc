"""What a handler sees of its step, and what it decides: a processor without a socket."""

import asyncio
import dataclasses
import datetime as dt
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from progressor.sdk import (
    BYTES,
    JSON,
    Constraints,
    Graph,
    Processor,
    ProcessStatus,
    Reject,
    RetryPolicy,
    Step,
    TaskType,
)
from progressor.v1 import nodes_pb2
from progressor.v1 import processor_service_pb2 as pb
from progressor.v1 import types_pb2 as types
from tests.unit.sdk.processor.asking import answer

NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
AT_NOON = Timestamp(seconds=int(NOON.timestamp()))


@dataclasses.dataclass
class Order:
    items: list[str]


@pytest.fixture
def threads() -> Iterator[Executor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


def asked(
    task_type: types.TaskType.ValueType = types.TASK_TYPE_CALL,
    *,
    args: bytes = b"",
    state: bytes = b"",
    process_id: str = "p",
    timer_name: str = "",
) -> pb.ProcessRequest:
    """Return a request of the engine; every default is valid."""
    request = pb.ProcessRequest(
        process=types.Process(
            namespace="orders",
            process_id=process_id,
            status=types.PROCESS_STATUS_RUNNING,
            aux_state=state,
            last_event_id=1,
        ),
        task=pb.ProcessorTask(
            task_id=7, type=task_type, args=args, attempt=2, token=9, timer_name=timer_name
        ),
    )
    request.process.metadata.update({"region": "eu"})
    request.task.caller_context["user"] = "ann"
    request.task.trace_context["traceparent"] = "00-a-b-01"
    request.task.scheduled_at.FromDatetime(NOON)
    request.deadline.FromDatetime(NOON)
    event = request.history.add(event_id=1, payload=b'"made"', format_version=3, task_id=6)
    event.occurred_at.FromDatetime(NOON)
    return request


async def test_a_step_shows_process_task_and_caller() -> None:
    seen: dict[str, Any] = {}

    async def look(step: Step[Any]) -> None:
        seen.update(
            namespace=step.namespace,
            process_id=step.process_id,
            status=step.status,
            detail=step.detail,
            last_event_id=step.last_event_id,
            task=(step.task_id, step.type, step.attempt, step.token),
            times=(step.scheduled_at, step.deadline),
            context=dict(step.context),
            trace_context=dict(step.trace_context),
            metadata=step.metadata,
            args=step.args,
            state=step.state,
        )

    await answer(look, asked(args=b"[1,2]", state=b'{"n":1}'))

    assert seen == {
        "namespace": "orders",
        "process_id": "p",
        "status": ProcessStatus.RUNNING,
        "detail": "",
        "last_event_id": 1,
        "task": (7, TaskType.CALL, 2, 9),
        "times": (NOON, NOON),
        "context": {"user": "ann"},
        "trace_context": {"traceparent": "00-a-b-01"},
        "metadata": {"region": "eu"},
        "args": [1, 2],
        "state": {"n": 1},
    }


async def test_what_is_not_read_is_not_decoded() -> None:
    async def ignore(_step: Step[Any]) -> int:
        return 1

    request = asked(args=b"{garbage", state=b"{garbage")

    assert (await answer(ignore, request)).response == b"1"


async def test_state_has_the_type_of_the_processor() -> None:
    processor = Processor("orders", state=Order)

    @processor.call
    async def add(step: Step[Order]) -> int:
        order = step.state
        order.items.append("milk")
        step.state = order
        return len(step.state.items)

    response = await answer(processor, asked(state=b'{"items":["tea"]}'))

    assert response.aux_state == b'{"items":["tea","milk"]}'
    assert response.response == b"2"


async def test_metadata_is_overwritten_by_assignment() -> None:
    async def tag(step: Step[Any]) -> Any:
        step.metadata = {**step.metadata, "paid": True}
        return step.metadata

    response = await answer(tag, asked())

    assert dict(response.metadata) == {"region": "eu", "paid": True}
    assert response.response in {
        b'{"region":"eu","paid":true}',
        b'{"paid":true,"region":"eu"}',
    }


def _last_timer_stands(step: Step[Any]) -> None:
    step.set_timer(after=1)
    step.unset_timer()


def _last_change_of_each_timer_stands(step: Step[Any]) -> None:
    step.set_timer("a", after=1)
    step.set_timer("b", args="b")
    step.unset_timer("c")
    step.set_timer()
    step.set_timer("a", at=NOON)
    step.unset_timer("b")


def _last_action_stands(step: Step[Any]) -> None:
    step.remove()
    step.complete()


ACTIONS: list[tuple[Callable[[Step[Any]], None], pb.ProcessResponse]] = [
    (
        lambda step: step.set_timer(at=NOON, remove=True),
        pb.ProcessResponse(set_timer=types.SetTimer(at=AT_NOON, remove=True)),
    ),
    (lambda step: step.set_timer(), pb.ProcessResponse(set_timer=types.SetTimer())),
    (lambda step: step.unset_timer(), pb.ProcessResponse(unset_timer=pb.UnsetTimer())),
    (lambda step: step.remove(), pb.ProcessResponse(remove=pb.RemoveProcess())),
    (
        lambda step: step.complete({"n": 1}),
        pb.ProcessResponse(complete=pb.Complete(result=b'{"n":1}')),
    ),
    (lambda step: step.complete(), pb.ProcessResponse(complete=pb.Complete())),
    (_last_timer_stands, pb.ProcessResponse(unset_timer=pb.UnsetTimer())),
    (_last_action_stands, pb.ProcessResponse(complete=pb.Complete())),
    (
        _last_change_of_each_timer_stands,
        pb.ProcessResponse(
            set_timer=types.SetTimer(),
            timers=[
                pb.TimerChange(name="c", unset=pb.UnsetTimer()),
                pb.TimerChange(name="a", set=types.SetTimer(at=AT_NOON)),
                pb.TimerChange(name="b", unset=pb.UnsetTimer()),
            ],
        ),
    ),
]


@pytest.mark.parametrize(("handler", "expected"), ACTIONS)
async def test_each_action_reaches_the_wire(
    handler: Callable[[Step[Any]], None], expected: pb.ProcessResponse
) -> None:
    assert await answer(handler, asked()) == expected


def _start_nodes(step: Step[Any]) -> None:
    graph = Graph()
    graph.node("a")
    step.start_nodes(graph)


TIMERS: dict[str, Callable[[Step[Any]], None]] = {
    "set_timer": lambda step: step.set_timer(after=1),
    "unset_timer": lambda step: step.unset_timer(),
}
DECISIONS: dict[str, Callable[[Step[Any]], None]] = {
    "start_nodes": _start_nodes,
    "complete": lambda step: step.complete(),
    "remove": lambda step: step.remove(),
}


@pytest.mark.parametrize("timer", TIMERS)
@pytest.mark.parametrize("action", DECISIONS)
@pytest.mark.parametrize("turned", [False, True])
async def test_a_timer_can_be_combined_with_every_action_in_either_order(
    timer: str, action: str, turned: bool
) -> None:
    def handler(step: Step[Any]) -> None:
        decisions = [TIMERS[timer], DECISIONS[action]]
        for decide in reversed(decisions) if turned else decisions:
            decide(step)

    answered = await answer(handler, asked())

    assert (answered.WhichOneof("timer"), answered.WhichOneof("action")) == (timer, action)


async def raising(error: Exception) -> pb.ProcessResponse:
    """Return the answer of a handler that decides something and then raises `error`."""

    async def handler(step: Step[Any]) -> None:
        step.emit("lost")
        step.state = 1
        raise error

    return await answer(handler, asked())


async def test_a_rejection_is_all_that_is_answered() -> None:
    reject = Reject(
        "no tea",
        code=grpc.StatusCode.RESOURCE_EXHAUSTED,
        reason="NO_STOCK",
        metadata={"item": "tea"},
    )

    assert await raising(reject) == pb.ProcessResponse(
        reject=pb.Reject(code=8, message="no tea", reason="NO_STOCK", metadata={"item": "tea"})
    )


async def test_a_response_that_cannot_be_encoded_fails_the_step() -> None:
    processor = Processor("orders", codec=BYTES)
    processor.call(lambda _step: "text")

    assert (await answer(processor, asked())).failure.reason == "TypeError"


@pytest.mark.parametrize("name", ["init", "call", "notify", "repair", "timeout"])
async def test_each_task_type_has_its_handler(name: str) -> None:
    processor = Processor("orders")
    register: Callable[[Callable[[Step[Any]], Any]], Any] = getattr(processor, name)
    number = types.TaskType.Value(f"TASK_TYPE_{name.upper()}")
    before = await answer(processor, asked(number))

    register(lambda step: step.type)

    after = await answer(processor, asked(number))
    # An unhandled request is refused; a timer has no caller to refuse.
    refusal = before.failure if name == "timeout" else before.reject
    assert refusal.code == (9 if name == "timeout" else 12)
    assert f"@processor.{name}" in refusal.message
    assert after.response == f'"{name}"'.encode()


def test_a_second_handler_of_a_type_is_refused() -> None:
    processor = Processor("orders")
    processor.init(lambda _step: None)
    processor.timeout("a")(lambda _step: None)

    with pytest.raises(ValueError, match="already has a handler for init tasks"):
        processor.init(lambda _step: None)
    with pytest.raises(ValueError, match="already has a handler for timer 'a'"):
        processor.timeout("a")(lambda _step: None)


async def test_a_timer_runs_its_own_handler_or_that_of_all_others() -> None:
    processor = Processor("orders")

    @processor.timeout("a")
    async def a(step: Step[Any]) -> str:
        return f"a: {step.timer_name}"

    assert (processor.task_types, a.__name__) == (("timeout",), "a")
    number = types.TaskType.TASK_TYPE_TIMEOUT
    missing = await answer(processor, asked(number, timer_name="b"))
    assert missing.failure.message.endswith('or @processor.timeout("b") for this timer')

    processor.timeout(lambda step: f"other: {step.timer_name}")

    responses = [await answer(processor, asked(number, timer_name=it)) for it in ("a", "b", "")]
    assert [it.response for it in responses] == [b'"a: a"', b'"other: b"', b'"other: "']


@pytest.mark.parametrize("name", ["x" * 65, "a\0", "é" * 33])
async def test_a_bad_name_of_a_timer_is_refused_where_it_is_used(name: str) -> None:
    with pytest.raises(ValueError, match="the name of a timer must"):
        Processor("orders").timeout(name)

    async def use(step: Step[Any]) -> None:
        for change in (step.set_timer, step.unset_timer):
            with pytest.raises(ValueError, match="the name of a timer must"):
                change(name)

    assert await answer(use, asked()) == pb.ProcessResponse()


async def test_a_step_sets_no_more_timers_than_a_process_can_have() -> None:
    async def use(step: Step[Any]) -> None:
        for number in range(32):
            step.set_timer(str(number))
        with pytest.raises(ValueError, match="at most 32 timers"):
            step.set_timer("one more")
        step.unset_timer("0")
        step.set_timer("one more")

    assert len((await answer(use, asked())).timers) == 33


class Blocking:
    """A plain handler that runs until it is released; counts how many of it run at once."""

    def __init__(self) -> None:
        self.entered, self.released = threading.Semaphore(0), threading.Event()
        self.left = threading.Semaphore(0)
        self.count = 0

    def __call__(self, step: Step[Any]) -> int:
        self.count += 1
        self.entered.release()
        try:
            assert self.released.wait(timeout=30)
            return step.attempt
        finally:
            self.left.release()


async def until_entered(blocking: Blocking) -> None:
    assert await asyncio.to_thread(blocking.entered.acquire, timeout=30)


async def test_an_attempt_is_not_begun_while_an_earlier_one_runs_in_a_thread(
    threads: Executor, caplog: pytest.LogCaptureFixture
) -> None:
    blocking = Blocking()
    processor = Processor("orders")
    processor.call(blocking)
    processor.repair(lambda _: "repaired")
    running = asked()
    first = asyncio.create_task(processor.answer(running, threads), name="first attempt")
    await until_entered(blocking)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first

    again = await answer(processor, asked())
    other = asked(types.TASK_TYPE_REPAIR)
    other.task.task_id = 8
    repair = await answer(processor, other)
    # With time left its handler is not at fault.
    running.deadline.FromDatetime(dt.datetime.now(dt.UTC) + dt.timedelta(hours=1))
    early = await answer(processor, asked())

    text = "attempt 2 of task 7 is still running"
    behind = "task 7, which was cancelled or given up, is still running, in attempt 2"
    assert [(it.failure.code, it.failure.message) for it in (again, repair, early)] == [
        (10, text),
        (14, behind),
        (14, text),
    ]
    assert {it.failure.reason for it in (again, repair, early)} == {"STILL_RUNNING"}
    assert "attempt 2 of task 7 is still running" in caplog.text
    assert blocking.count == 1
    blocking.released.set()
    await asyncio.to_thread(threads.shutdown)
    with ThreadPoolExecutor(1) as others:
        assert (await processor.answer(asked(), others)).response == b"2"


async def test_an_async_attempt_that_was_cancelled_makes_room_at_once(threads: Executor) -> None:
    entered = asyncio.Event()

    async def hang(_step: Step[Any]) -> str:
        if entered.is_set():
            return "begun"
        entered.set()
        return await asyncio.Future()

    processor = Processor("orders")
    processor.call(hang)
    first = asyncio.create_task(processor.answer(asked(), threads), name="first attempt")
    await entered.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first

    assert (await answer(processor, asked())).response == b'"begun"'


async def test_a_follower_gets_what_it_comes_after() -> None:
    processor = Processor("orders")

    @processor.init
    async def add(step: Step[Any]) -> None:
        step.complete(step.results["map-1"] + step.args)

    request = asked(types.TASK_TYPE_INIT, args=b"1")
    request.task.nodes.add(name="map-1", state=nodes_pb2.NODE_STATE_DONE, result=b"4")

    assert (await answer(processor, request)).complete.result == b"5"


def a_step() -> tuple[Step[Any], pb.ProcessResponse]:
    response = pb.ProcessResponse()
    return Step(asked(), response, codec=JSON), response


def test_messages_are_part_of_the_answer() -> None:
    step, response = a_step()

    step.start("b", {"a": 1}, metadata={"of": "a"}, namespace="stock")
    step.notify("c", context={"k": "v"}, constraints=Constraints(gates={"g": 2}))
    step.call("d")

    start, notify, call = response.messages
    assert (start.kind, start.namespace, start.process_id) == (1, "stock", "b")
    assert (start.args, dict(start.metadata)) == (b'{"a":1}', {"of": "a"})
    assert (notify.kind, notify.namespace, dict(notify.caller_context)) == (2, "", {"k": "v"})
    assert [(it.gate, it.capacity) for it in notify.constraints.gates] == [("g", 2)]
    assert (call.kind, call.process_id) == (3, "d")


@pytest.mark.parametrize(
    ("process_id", "namespace", "what"),
    [
        ("", "stock", "process_id must not be empty"),
        ("b", "No", r"namespace must be 1 to 64 characters of \[a-z0-9._-\], got 'No'"),
    ],
)
def test_a_message_without_a_valid_receiver_is_refused(
    process_id: str, namespace: str, what: str
) -> None:
    step, response = a_step()

    with pytest.raises(ValueError, match=what):
        step.notify(process_id, namespace=namespace)
    assert not response.messages


@pytest.mark.parametrize("send", ["start", "notify", "call"])
@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"namespce": "stock"}, r"{}\(\) got an unexpected keyword argument 'namespce'"),
        ({"namespace": None}, "namespace must be a str, got None"),
        ({"reply": True}, "reply must be a str, got True"),
        ({"process_id": 5}, "process_id must be a str, got 5"),
    ],
)
def test_a_message_with_an_unknown_option_or_of_another_type_is_refused(
    send: str, options: dict[str, Any], what: str
) -> None:
    step, response = a_step()

    with pytest.raises(TypeError, match=what.format(send)):
        getattr(step, send)(**{"process_id": "b"} | options)
    assert not response.messages


def test_a_step_sends_at_most_a_hundred_messages() -> None:
    step, _ = a_step()
    for _ in range(100):
        step.notify("b")

    with pytest.raises(ValueError, match="at most 100 messages"):
        step.notify("b")


NUMBER: Any = 0.05


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda step: step.set_timer(5), "must be a str, got 5; a delay is `after=`"),
        (lambda step: step.set_timer(0), "must be a str, got 0"),
        (lambda step: step.set_timer(after=float("nan")), "^after must be seconds .*, got nan"),
        (lambda step: step.set_timer(step_timeout="1"), "^step_timeout must be seconds"),
        (lambda step: step.set_timer(after=1e300), "^after must be seconds or a timedelta"),
        (lambda _: RetryPolicy(initial_interval=NUMBER), "^initial_interval must be a timedelta"),
    ],
)
def test_a_wrong_value_is_named_with_its_field(
    change: Callable[[Step[Any]], None], expected: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=expected):
        change(a_step()[0])
