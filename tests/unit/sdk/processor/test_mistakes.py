"""Mistakes of a processor's author show when it is written or served, not in the first process."""

import abc
import asyncio
import collections
import contextlib
import dataclasses
import datetime as dt
import logging
import pathlib
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NoReturn, Protocol

import msgspec
import pytest
from google.rpc import code_pb2

from progressor.sdk import (
    BYTES,
    Fail,
    Processor,
    ProcessStatus,
    Reject,
    Retry,
    Step,
    running,
)
from progressor.sdk.testing import Rehearsal
from tests.unit.sdk.processor.asking import answer


@dataclasses.dataclass
class Cash:
    amount: int


@dataclasses.dataclass
class Card:
    number: str


class Paid(msgspec.Struct, tag=True):
    amount: int


class Due(msgspec.Struct, tag=True):
    amount: int


class Price:
    """A class that JSON cannot represent."""


@dataclasses.dataclass
class Basket:
    prices: list[Price]


@dataclasses.dataclass
class Grid:
    cells: dict[tuple[int, int], str]


@dataclasses.dataclass
class Tree:
    left: "Tree | None"
    leaf: complex


async def charge(_order: str) -> bool:
    return True


async def served(*handlers: Any) -> None:
    """Serve each handler for a moment, as that of calls."""
    for handler in handlers:
        processor = Processor("orders")
        processor.call(handler)
        async with running(processor, bind="127.0.0.1:0"):
            pass


# --- The type of the state


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Cash | Card, "more than one dataclass"),
        (list[Cash | Card], "more than one dataclass"),
        (Price, "JSON cannot represent `Price`"),
        (Basket, "JSON cannot represent `Price` (in `Basket.prices`)"),
        (Grid, "JSON cannot represent a key of type `tuple` (in `Grid.cells`)"),
        (Tree, "JSON cannot represent `complex` (in `Tree.leaf`)"),
        (collections.deque, "JSON cannot represent `deque`"),
        ("Basket", "'Basket'"),
        *((it, "Type unions may not contain") for it in (dt.datetime | str, Cash | dict)),
        (bytes | str, "Type unions may not contain"),
    ],
)
def test_a_state_that_can_never_be_read_is_refused_by_the_processor(kind: Any, words: str) -> None:
    with pytest.raises(TypeError) as raised:
        Processor("orders", state=kind)

    told = str(raised.value)
    assert told.startswith("processor 'orders': the state cannot be ")
    assert words in told
    # Tags are advised only where they help.
    assert "unions" not in words or "tag" not in told


def test_a_codec_of_bytes_refuses_a_state_of_another_type() -> None:
    with pytest.raises(TypeError, match="state cannot be a `Cash`: the bytes codec accepts only"):
        Processor("orders", state=Cash, codec=BYTES)
    assert Processor("orders", state=bytes, codec=BYTES).state_type is bytes


@pytest.mark.parametrize(
    "kind",
    [Cash, Paid | Due, Cash | None, dict[int, Cash], list[str], object, Any, tuple[int, ...]],
)
def test_a_state_that_can_be_read_is_taken(kind: Any) -> None:
    assert Processor("orders", state=kind).state_type is kind


# --- Handlers


def no_argument() -> None: ...


def two_arguments(_step: Step[Any], _order: str) -> None: ...


def keyword_only(_step: Step[Any], *, order: str) -> None: ...


def generating(_step: Step[Any]) -> Iterator[int]:
    yield 1


async def generating_async(_step: Step[Any]) -> Any:
    yield 1


def returning_path(_step: Step[Any]) -> pathlib.Path:
    return pathlib.Path()


def returning_path_or_nothing(_step: Step[Any]) -> pathlib.Path | None:
    return None


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (no_argument, "must take one argument, the step, got ()"),
        (two_arguments, "must take one argument, the step, got (_step: "),
        (keyword_only, "must take one argument, the step, got (_step: "),
        (generating, "must return its response, not yield"),
        (generating_async, "must return its response, not yield"),
        (returning_path, "cannot return a `Path`: JSON cannot represent `Path`"),
        (returning_path_or_nothing, "cannot return a `Path`: JSON cannot represent `Path`"),
        ("pay", "must be a function, got 'pay'"),
    ],
)
def test_a_handler_that_can_never_answer_is_refused_when_it_is_registered(
    handler: Any, words: str
) -> None:
    processor = Processor("orders")

    with pytest.raises(TypeError) as raised:
        processor.call(handler)

    name = getattr(handler, "__qualname__", repr(handler))
    assert str(raised.value).startswith(f"processor 'orders': call handler {name} ")
    assert words in str(raised.value)


class Answering(abc.ABC):
    @abc.abstractmethod
    def total(self) -> int: ...


class Base:
    pass


@dataclasses.dataclass
class Derived(Base):
    amount: int


class HasTotal(Protocol):
    total: int


class Handlers:
    def place(self, step: Step[Any]) -> None: ...

    def __call__(self, step: Step[Any]) -> None: ...


def abstract(_step: Step[Any]) -> Answering: ...  # type: ignore[empty-body]
def derived(_step: Step[Any]) -> Base:
    return Derived(1)


def protocol(_step: Step[Any]) -> HasTotal: ...  # type: ignore[empty-body]
def two_dataclasses(_step: Step[Any]) -> Cash | Card: ...  # type: ignore[empty-body]
def never(_step: Step[Any]) -> NoReturn:
    raise Fail("always")


def unresolved(_step: Step[Any]) -> "Nowhere": ...  # type: ignore[name-defined]  # noqa: F821
def more(_step: Step[Any], retries: int = 3, *_args: object, **_options: object) -> None: ...
def awaitable(_step: Step[Any]) -> Awaitable[bool]:
    return charge("order")


@pytest.mark.parametrize(
    "handler",
    [
        abstract, derived, protocol, two_dataclasses, never, unresolved, more, awaitable,
        Handlers(), Handlers().place, lambda _step: None, print,
    ],
)  # fmt: skip
def test_a_handler_that_may_answer_is_taken(handler: Callable[[Step[Any]], Any]) -> None:
    Processor("orders").call(handler)


# --- Forgotten awaits


async def discarding(step: Step[Any]) -> None:
    charge(step.process_id)  # type: ignore[unused-coroutine]


def discarding_plainly(step: Step[Any]) -> None:
    charge(step.process_id)  # type: ignore[unused-coroutine]


async def deciding_by_it(step: Step[Any]) -> None:
    if charge("order"):  # type: ignore[truthy-bool]
        step.unset_timer()


async def keeping_it(step: Step[Any]) -> None:
    step.state = charge("order")


async def emitting_it(step: Step[Any]) -> None:
    step.emit(charge("order"))


async def looking_into_it(_step: Step[Any]) -> str:
    return charge("order").amount  # type: ignore[attr-defined, no-any-return]


async def negating_it(_step: Step[Any]) -> bool:
    return not charge("order")  # type: ignore[truthy-bool]


async def awaiting(step: Step[Any]) -> bool:
    first = charge("a")
    both = await asyncio.gather(first, charge("b"), *[charge(it) for it in ("c", "d")])
    third = asyncio.create_task(charge("e"))
    async with asyncio.TaskGroup() as group:
        group.create_task(charge("f"))
    if await charge("g") and all(both) and await third:
        return await (charge("h") if step.attempt else charge("i"))

    async def later() -> None:
        await charge("j")

    await later()
    async with step.keep_alive(), contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(step.keep_alive())
    return await asyncio.wait_for(charge("k"), 1)


async def shadowing(step: Step[Any]) -> None:
    charge = step.emit
    charge("order")


class Pending:
    """Where a handler keeps what it awaits later."""

    charge: Awaitable[int]


async def keeping_for_later(_step: Step[Any]) -> Any:
    charges, pending = {}, Pending()
    charges["a"] = charge("a")
    pending.charge = charge("b")
    return [await charges["a"], await pending.charge]


async def test_what_is_awaited_somewhere_is_taken() -> None:
    await served(awaiting, shadowing, keeping_for_later)


async def asked_by(handler: Callable[[Step[Any]], Any]) -> Any:
    """Return what a handler of calls answers in a process."""
    processor = Processor("orders")
    processor.init(lambda step: step.unset_timer())
    processor.call(handler)
    process = Rehearsal(processor)
    await process.start()
    return (await process.call()).response


async def returning_a_coroutine(_step: Step[Any]) -> Any:
    return charge("order")


@pytest.mark.parametrize(
    "handler", [lambda _step: charge("order"), awaitable, returning_a_coroutine]
)
async def test_a_coroutine_that_a_handler_returns_is_awaited(handler: Any) -> None:
    assert await asked_by(handler) is True


# --- Types that a handler asks for


async def asking_for_two_dataclasses(step: Step[Any]) -> None:
    step.args_as(Cash | Card)


def asking_for_a_price(step: Step[Any]) -> int:
    return sum(len(it) for it in step.results_as(list[Price]).values())


async def charging_once(step: Step[Any]) -> None:
    step.once("charge", charge)  # type: ignore[unused-coroutine]  # that is the mistake


async def keeping_alive_without_async(step: Step[Any]) -> None:
    with step.keep_alive():  # type: ignore[attr-defined]  # that is the mistake
        pass


async def keeping_nothing_alive(step: Step[Any]) -> None:
    step.keep_alive(5)


def keeping_alive_plainly(step: Step[Any]) -> None:
    with step.keep_alive():  # type: ignore[attr-defined]  # that is the mistake
        pass


def extending_plainly(step: Step[Any]) -> None:
    step.extend(60)  # type: ignore[unused-coroutine]  # that is the mistake


AWAIT = "must await charge(...)"
ENTER = "must enter step.keep_alive(...) with `async with`"


@pytest.mark.parametrize(
    ("handler", "beginning", "end"),
    [
        *((it, AWAIT, "") for it in (discarding, deciding_by_it, keeping_it, emitting_it)),
        *((it, AWAIT, "") for it in (looking_into_it, negating_it)),
        (discarding_plainly, AWAIT, "; make the handler `async def`"),
        (charging_once, "must await step.once(...)", ""),
        (keeping_alive_without_async, ENTER, ""),
        (keeping_nothing_alive, ENTER, ""),
        (keeping_alive_plainly, ENTER, "; make the handler `async def`, or use step.blocking"),
        (extending_plainly, "must await step.extend(...)", "async def`, or use step.blocking"),
        (asking_for_two_dataclasses, "requests a `", "more than one dataclass"),
        (asking_for_a_price, "requests a `", "JSON cannot represent `Price`"),
    ],
)
async def test_what_the_source_of_a_handler_gets_wrong_is_refused_at_the_start(
    handler: Any, beginning: str, end: str
) -> None:
    with pytest.raises(TypeError) as raised:
        await served(handler)

    told, line = str(raised.value), handler.__code__.co_firstlineno + 1
    assert told.startswith(f"processor 'orders': call handler {handler.__qualname__} {beginning}")
    assert f"({__file__}, line {line})" in told
    assert end in told


KINDS: dict[type[Any], Any] = {Cash: Card}


async def asking(step: Step[Any]) -> None:
    kind = Cash if step.attempt else Card
    step.args_as(KINDS[Cash])
    step.args_as(KINDS[Card])  # as good as not there, and nothing looks
    step.args_as(kind)
    step.args_as(Cash | None)
    step.args_as(Paid | Due)
    step.args_as(dict[str, tuple[int, ...]])
    step.args_as(asyncio.Future if step.attempt else int)
    step.results_as(Any)


async def test_types_that_may_be_read_can_be_asked_for() -> None:
    await served(asking)


# --- No handlers


async def test_a_processor_without_handlers_is_not_served() -> None:
    with pytest.raises(ValueError, match=r"processor 'orders' has no handlers: .*@processor.init"):
        async with Processor("orders").running("127.0.0.1:0"):
            pass


# --- The state that a step sets


@pytest.mark.parametrize("wrong", [{"amount": "1"}, Cash("1"), "cash", [1]])  # type: ignore[arg-type]
async def test_a_state_of_a_wrong_type_is_refused_by_the_step_that_sets_it(wrong: Any) -> None:
    processor = Processor("orders", state=Cash)
    went_on = []

    @processor.init
    async def place(step: Step[Cash]) -> None:
        step.state = Cash(1)

    @processor.call
    async def spoil(step: Step[Cash]) -> None:
        step.state = wrong
        went_on.append(step)

    process = Rehearsal(processor)
    await process.start()
    with pytest.raises(Exception, match=r"step\.state must be of type `Cash`: Expected `"):
        await process.call()

    assert (went_on, process.state) == ([], Cash(1))
    assert process.status is ProcessStatus.ERROR


async def test_a_state_can_be_emptied_and_be_equivalent() -> None:
    processor = Processor("orders", state=Cash)
    processor.init(lambda step: setattr(step, "state", {"amount": 3}))
    processor.call(lambda step: setattr(step, "state", None))
    process = Rehearsal(processor)

    await process.start()
    assert process.state == Cash(3)
    await process.call()
    assert process.state is None


# --- Handlers that block


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    with caplog.at_level(logging.WARNING, logger="progressor.sdk"):
        yield lambda: [it.getMessage() for it in caplog.records if "blocked" in it.getMessage()]


@pytest.mark.parametrize("pauses", [0, 1])
async def test_a_handler_that_blocks_at_each_step_is_named_once_a_minute(
    warnings: Callable[[], list[str]], pauses: int
) -> None:
    async def pay(_step: Step[Any]) -> None:
        for _ in range(pauses):
            await asyncio.sleep(0)
        time.sleep(0.11)  # noqa: ASYNC251

    processor = Processor("orders")
    processor.init(pay)
    for number in range(3):
        await Rehearsal(processor, f"order-{number}").start()

    (message,) = warnings()
    assert "processor 'orders': init handler test_a_handler_that_blocks" in message
    assert ".pay blocked the event loop for 0." in message


async def test_what_a_handler_awaits_does_not_count_as_blocking(
    warnings: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter(range(1_000))

    async def pay(_step: Step[Any]) -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    monkeypatch.setattr("progressor.sdk.processor.blocking.LIMIT_SECONDS", 1.5)
    monkeypatch.setattr("progressor.sdk.processor.blocking.clock", lambda: float(next(moments)))
    await asked_by(pay)

    assert warnings() == []


async def test_cancellation_and_errors_reach_a_handler(
    warnings: Callable[[], list[str]],
) -> None:
    caught: list[str] = []

    async def pay(_step: Step[Any]) -> str:
        try:
            async with asyncio.timeout(0):
                await asyncio.sleep(60)
        except TimeoutError:
            caught.append("timeout")
        return "late"

    assert await asked_by(pay) == "late"
    assert (caught, warnings()) == (["timeout"], [])


# --- Verdicts and errors that cannot be sent as they are


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (lambda: Reject("no", code=9), "code must be a grpc.StatusCode, got 9"),  # type: ignore[arg-type]
        (lambda: Reject(ValueError("no")), "message must be a str, got ValueError('no')"),  # type: ignore[arg-type]
        (lambda: Reject("no", reason=5), "reason must be a str, got 5"),  # type: ignore[arg-type]
        (lambda: Reject("no", metadata={"n": 5}), "metadata must be of str, got {'n': 5}"),  # type: ignore[dict-item]
        (lambda: Fail(ValueError("no")), "message must be a str, got ValueError('no')"),  # type: ignore[arg-type]
        (lambda: Retry("no", after="5"), "after must be seconds or a timedelta, got '5'"),  # type: ignore[arg-type]
        (lambda: Retry("no", after=float("nan")), "after must be seconds or a timedelta, got nan"),
    ],
)
async def test_a_verdict_of_wrong_types_names_them(verdict: Any, words: str) -> None:
    def refusing(_step: Step[Any]) -> NoReturn:
        raise verdict()

    task = await failed_by(refusing)

    assert words in task


@pytest.mark.parametrize("after", [-5, dt.timedelta(days=-1)])
def test_a_retry_after_an_instant_that_has_passed_is_asked_for_at_once(after: Any) -> None:
    failure = Retry("busy", after=after).to_wire().failure

    assert failure.code == code_pb2.ABORTED
    assert failure.HasField("retry_after")
    assert failure.retry_after.ToTimedelta() == dt.timedelta(0)


@pytest.mark.parametrize("error", [Reject("\ud800"), Fail("\ud800"), ValueError("\ud800")])
async def test_what_is_not_unicode_is_escaped_in_the_words_of_an_error(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    # No report of a test may hold a surrogate: the traceback in the log would.
    caplog.set_level(logging.CRITICAL, logger="progressor.sdk.processor.processor")

    def failing(_step: Step[Any]) -> NoReturn:
        raise error

    assert await failed_by(failing) == "\\ud800"


async def test_a_plain_handler_that_raises_stop_iteration_fails_its_step_at_once() -> None:
    def looking(_step: Step[Any]) -> int:
        return next(it for it in [1, 2] if it > 2)

    async with asyncio.timeout(60):  # it hung until the step timeout
        assert "raised StopIteration" in await failed_by(looking)


async def failed_by(handler: Any) -> str:
    """Return what is said of a step that a handler ends by an error."""
    response = await answer(handler)
    return response.reject.message or response.failure.message
