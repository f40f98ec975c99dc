"""`step.once` in a rehearsal: it runs the function, and remembers across attempts."""

from collections.abc import Callable
from typing import Any

import pytest

from progressor import errors
from progressor.domain.processes.memo import MEMOS_BYTES_MAX
from progressor.sdk import Fail, NamespaceConfig, Processor, Retry, Step
from progressor.sdk.testing import Rehearsal

KINDS = pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])


class Shop:
    """A processor whose timer and calls charge once, and then do as the script says."""

    def __init__(self, *, is_async: bool) -> None:
        self.charged: list[str] = []
        self.script: list[Exception | None] = []
        self.processor: Processor[Any] = Processor("shop")
        self.processor.init(lambda step: step.set_timer(after=60))
        handler: Callable[[Step[Any]], Any] = self._charge_async if is_async else self._charge
        self.processor.call(handler)
        self.processor.timeout(handler)

    async def _charge_async(self, step: Step[Any]) -> int:
        return self._end(await step.once("charge", self.act_async, str(step.type), type=int))

    def _charge(self, step: Step[Any]) -> int:
        return self._end(step.blocking.once("charge", self.act, str(step.type), type=int))

    def act(self, word: str) -> int:
        self.charged.append(word)
        return len(self.charged)

    async def act_async(self, word: str) -> int:
        return self.act(word)

    def _end(self, receipt: int) -> int:
        ending = self.script.pop(0) if self.script else None
        if ending is not None:
            raise ending
        return receipt


@KINDS
async def test_attempts_and_a_retry_of_what_broke_have_the_result_and_the_next_task_has_not(
    is_async: bool,
) -> None:
    shop = Shop(is_async=is_async)
    rehearsal = Rehearsal(shop.processor)
    await rehearsal.start()
    shop.script = [Retry("again"), KeyError("a bug"), Fail("no")]
    with pytest.raises(errors.ProcessFailedError):
        await rehearsal.call()
    charged = list(shop.charged)
    await rehearsal.retry()
    again = rehearsal.steps[-1].response
    following = await rehearsal.call()

    assert (charged, again) == (["call"], 1)
    assert (following.response, shop.charged) == (2, ["call", "call"])


@KINDS
async def test_a_timer_that_is_tried_again_or_run_again_has_its_result(is_async: bool) -> None:
    shop = Shop(is_async=is_async)
    rehearsal = Rehearsal(shop.processor)
    await rehearsal.start()
    shop.script = [Retry("again"), Fail("no")]
    await rehearsal.advance(3600)
    await rehearsal.simple_repair()

    assert [it.attempt_count for it in rehearsal.steps[1:]] == [2, 1]
    assert shop.charged == ["timeout"]


async def test_the_deadline_moves_up_to_the_longest_of_the_namespace() -> None:
    moved: list[float] = []
    processor: Processor[Any] = Processor("slow")

    @processor.init
    async def work(step: Step[Any]) -> None:
        began = step.deadline
        async with step.keep_alive():
            moved.append((await step.extend(100) - began).total_seconds())
        moved.append((await step.extend(10_000) - began).total_seconds())
        with pytest.raises(ValueError, match="must be greater than 0"):
            await step.extend(0)

    await Rehearsal(processor).start()

    assert moved == [70, 3570]


@pytest.mark.parametrize(
    ("key", "error"),
    [("", "must not be empty"), ("x" * 257, "257"), ("a\nb", "U\\+000A")],
)
async def test_a_bad_key_is_refused_before_the_function_runs(key: str, error: str) -> None:
    processor: Processor[Any] = Processor("shop")

    @processor.init
    async def charge(step: Step[Any]) -> None:
        with pytest.raises(ValueError, match=error):
            await step.once(key, pytest.fail, "it ran")

    await Rehearsal(processor).start()


class Odd:
    """What no codec encodes."""


@KINDS
@pytest.mark.parametrize("is_caught", [True, False])
@pytest.mark.parametrize(
    ("result", "what"),
    [
        (b"x" * 2_000, "cannot be stored: must be at most 1000 bytes, got 2670"),
        (
            "x" * MEMOS_BYTES_MAX,
            (
                "has 16777218 bytes; "
                "the results of a task may have 16777216 in all, and 16777211 are left"
            ),
        ),
        (Odd(), "cannot be encoded: TypeError: Encoding objects of type Odd is unsupported"),
    ],
    ids=["large", "huge", "odd"],
)
async def test_a_result_that_can_never_be_stored_breaks_the_process_at_once(
    result: object, what: str, is_caught: bool, is_async: bool
) -> None:
    paid: list[int] = []
    processor: Processor[Any] = Processor("shop")

    def pay(step: Step[Any]) -> object:
        paid.append(step.attempt)
        return result

    async def charge(step: Step[Any]) -> None:
        await step.once("quote", lambda: 12345)
        try:
            await step.once("pay", pay, step)
        except Fail as error:
            with pytest.raises(Fail):
                await step.once("another", pytest.fail, "it ran")
            raise KeyError("another error") if is_caught else error  # noqa: B904  # as users do

    def charge_plain(step: Step[Any]) -> None:
        step.blocking.once("quote", lambda: 12345)
        try:
            step.blocking.once("pay", pay, step)
        except Fail as error:
            raise KeyError("another error") if is_caught else error  # noqa: B904  # as users do

    processor.init(charge if is_async else charge_plain)
    config = NamespaceConfig(name="shop", processor_targets=(), payload_bytes_max=1_000)

    with pytest.raises(errors.ProcessFailedError) as caught:
        await Rehearsal(processor, config=config).start()

    assert caught.value.failure_reason == "RESULT_NOT_STORED"
    assert caught.value.detail == f"step.once: the result of the key 'pay' {what}"
    assert paid == [1]


@KINDS
async def test_a_key_is_used_once_in_an_attempt_unless_its_function_raises(is_async: bool) -> None:
    processor: Processor[Any] = Processor("shop")
    found: list[object] = []

    async def ship(step: Step[Any]) -> None:
        if step.attempt == 1:
            with pytest.raises(ZeroDivisionError):
                await step.once("ship", lambda: 1 // 0)
        found.append(await step.once("ship", lambda: step.attempt))
        with pytest.raises(ValueError, match="the key 'ship' is already used in this step"):
            await step.once("ship", pytest.fail, "it ran")
        if step.attempt == 1:
            raise Retry("again")

    def ship_plain(step: Step[Any]) -> None:
        if step.attempt == 1:
            with pytest.raises(ZeroDivisionError):
                step.blocking.once("ship", lambda: 1 // 0)
        found.append(step.blocking.once("ship", lambda: step.attempt))
        with pytest.raises(ValueError, match="the key 'ship' is already used in this step"):
            step.blocking.once("ship", pytest.fail, "it ran")
        if step.attempt == 1:
            raise Retry("again")

    processor.init(ship if is_async else ship_plain)

    await Rehearsal(processor).start()

    assert found == [1, 1]


async def test_a_stored_result_of_another_type_names_its_key() -> None:
    processor: Processor[Any] = Processor("shop")

    @processor.init
    async def charge(step: Step[Any]) -> None:
        await step.once("charge", lambda: {"a": 1}, type=int)

    with pytest.raises(errors.ProcessFailedError) as caught:
        await Rehearsal(processor).start()

    expected = "step.once: the result of the key 'charge' is not a `int`: Expected `int`"
    assert caught.value.detail.startswith(expected)


async def test_a_key_whose_function_runs_is_not_begun_again() -> None:
    processor: Processor[Any] = Processor("shop")

    @processor.init
    async def charge(step: Step[Any]) -> str:
        async def nested() -> str:
            with pytest.raises(ValueError, match="is already used"):
                await step.once("charge", pytest.fail, "it ran")
            return "done"

        return await step.once("charge", nested, type=str)

    assert (await Rehearsal(processor).start(response_type=str)).response == "done"
