"""States of earlier versions are upgraded when they are read, and of later ones refused."""

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import pytest
from google.rpc import code_pb2

from progressor.sdk import BYTES, Fail, Processor, Step, running
from progressor.sdk.testing import Rehearsal
from progressor.v1 import processor_service_pb2 as pb
from progressor.v1 import types_pb2 as types
from tests.unit.sdk.processor.asking import answer


@dataclasses.dataclass
class OrderV2:
    items: list[str]


@dataclasses.dataclass
class Order:
    items: dict[str, int]


def orders(*, is_blocking: bool = False) -> Processor[Order]:
    """Return a processor of version 3; version 1 was a list, version 2 a class with a list."""
    processor = Processor("orders", state=Order, version=3)

    @processor.upgrade(1)
    def _(old: Any) -> dict[str, Any]:
        return {"items": [item.strip() for item in old]}

    @processor.upgrade(2)
    def _(old: OrderV2) -> Order:
        return Order(items={item: old.items.count(item) for item in old.items})

    def take(step: Step[Order]) -> object:
        if step.args == "save":
            step.state = step.state
        return step.state

    async def take_async(step: Step[Order]) -> object:
        return take(step)

    processor.call(take if is_blocking else take_async)
    return processor


def asked(state: bytes, version: int, args: bytes = b"") -> pb.ProcessRequest:
    process = types.Process(aux_state=state, state_version=version)
    task = pb.ProcessorTask(type=types.TASK_TYPE_CALL, args=args)
    return pb.ProcessRequest(process=process, task=task)


@pytest.mark.parametrize("is_blocking", [False, True])
@pytest.mark.parametrize(
    ("version", "state", "read"),
    [
        (0, b'["tea "]', b'{"items":{"tea":1}}'),
        (1, b'["tea "]', b'{"items":{"tea":1}}'),
        (2, b'{"items":["tea ","tea "]}', b'{"items":{"tea ":2}}'),
        (3, b'{"items":{"tea":5}}', b'{"items":{"tea":5}}'),
        (1, b"", b""),
    ],
)
async def test_a_state_is_read_by_the_upgrades_from_its_version_and_saved_with_the_new_one(
    *, is_blocking: bool, version: int, state: bytes, read: bytes
) -> None:
    processor = orders(is_blocking=is_blocking)

    only_read = await answer(processor, asked(state, version))
    saved = await answer(processor, asked(state, version, b'"save"'))

    assert only_read == pb.ProcessResponse(response=read)
    assert saved == pb.ProcessResponse(response=read, aux_state=read, state_version=3)


@pytest.mark.parametrize("version", [None, 1, 2])
async def test_a_state_newer_than_the_processor_is_refused_before_the_handler_runs(
    version: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    processor: Processor[Any] = Processor("orders", version=version)
    seen: list[Step[Any]] = []
    processor.call(seen.append)

    response = await answer(processor, asked(b"{", 3))

    message = f"the state has version 3, newer than version {version or 1} of processor 'orders'"
    assert response == pb.ProcessResponse(
        failure=pb.Failure(code=code_pb2.ABORTED, reason="STATE_TOO_NEW", message=message)
    )
    assert seen == []
    assert message in caplog.text


async def test_a_processor_without_a_version_saves_none() -> None:
    def save(step: Step[Any]) -> None:
        step.state = 1

    assert await answer(save) == pb.ProcessResponse(aux_state=b"1")


def _raise(_: Any) -> Any:
    raise KeyError("price")


def _of_another_type(old: OrderV2) -> Any:
    return old.items


@pytest.mark.parametrize(
    ("upgrade", "message"),
    [
        (_raise, "the upgrade of the state from version 1 failed: KeyError: 'price'"),
        (_of_another_type, "from version 1 failed: msgspec.ValidationError: Expected `object`"),
        (lambda _: None, "from version 1 failed: TypeError: it returned None instead of"),
        (lambda _: object(), "from version 1 failed: TypeError: Encoding objects of type object"),
        (lambda _: 5, "to version 2 failed: msgspec.ValidationError: Expected `object`, got `int`"),
    ],
)
async def test_a_failed_upgrade_fails_the_step_for_good_and_is_logged(
    upgrade: Callable[[Any], Any], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    processor = Processor("orders", state=Order, version=2)
    processor.upgrade(1)(upgrade)
    processor.call(lambda step: step.state)

    failure = (await answer(processor, asked(b'["tea"]', 1))).failure

    assert (failure.code, failure.reason) == (
        code_pb2.FAILED_PRECONDITION, "STATE_UPGRADE_FAILED",
    )  # fmt: skip
    assert message in failure.message
    [record] = [it for it in caplog.records if it.levelno == logging.ERROR]
    assert record.getMessage().startswith("upgrade of the state raised ")
    assert record.exc_info is not None


@pytest.mark.parametrize(("version", "missing"), [(2, "1"), (4, "1, 3")])
async def test_a_processor_with_a_gap_in_its_upgrades_is_not_served(
    version: int, missing: str
) -> None:
    processor: Processor[Any] = Processor("orders", version=version)
    processor.call(lambda step: step.state)
    if version > 2:
        processor.upgrade(2)(lambda old: old)
    message = f"'orders' has version {version} but no upgrade from version {missing}: add @proc"

    with pytest.raises(ValueError, match=message):
        async with running(processor, bind="127.0.0.1:0"):
            pass
    with pytest.raises(ValueError, match=message):
        Rehearsal(processor)


async def _async(old: Any) -> Any:
    return old


def _unresolvable(old: "Missing") -> Any:  # type: ignore[name-defined]  # noqa: F821  # the mistake
    return old


def _unreadable(old: complex) -> Any:
    return old


def _of_two(old: Any, new: Any) -> Any:
    return old, new


@pytest.mark.parametrize(
    ("version", "of", "function", "error", "words"),
    [
        (None, 1, len, ValueError, "'orders' has no version: create it with `version`"),
        (
            3,
            0,
            len,
            ValueError,
            "has version 3: upgrade must be from a smaller one, at least 1, got 0",
        ),
        (
            3,
            3,
            len,
            ValueError,
            "has version 3: upgrade must be from a smaller one, at least 1, got 3",
        ),
        (3, len, len, TypeError, "upgrade takes the old version, an int, got <built-in"),
        (3, 2, len, ValueError, "already has an upgrade from version 2"),
        (3, 1, _async, TypeError, "upgrade _async must be a plain function, not `async def`"),
        (3, 1, _of_two, TypeError, "upgrade _of_two must take one argument, the old state"),
        (3, 1, _unresolvable, TypeError, "the type of its argument cannot be resolved: name 'Mi"),
        (3, 1, _unreadable, TypeError, "cannot take a `complex`: JSON cannot represent `complex`"),
        (3, 1, 5, TypeError, "upgrade 5 must be a function"),
    ],
)
def test_a_wrong_upgrade_is_refused_when_it_is_registered(
    version: int | None, of: Any, function: Any, error: type[Exception], words: str
) -> None:
    processor: Processor[Any] = Processor("orders", version=version)
    if version is not None:
        processor.upgrade(2)(lambda old: old)

    with pytest.raises(error, match=words):
        processor.upgrade(of)(function)


@pytest.mark.parametrize(
    ("version", "error"),
    [("2", TypeError), (True, TypeError), (0, ValueError), (2**31, ValueError)],
)
def test_a_version_is_a_positive_int(version: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"processor 'orders': version must be .*, got"):
        Processor("orders", version=version)


def test_a_client_reads_a_state_of_any_older_version() -> None:
    processor = orders()

    assert processor.upgraded(["tea"], 0) == Order(items={"tea": 1})
    assert processor.upgraded(OrderV2(items=["tea"]), 2) == Order(items={"tea": 1})
    assert processor.upgraded(None, 1) is None
    with pytest.raises(ValueError, match="the state has version 4, newer than version 3"):
        processor.upgraded({}, 4)
    with pytest.raises(ValueError, match="the version of a state must be at least 0, got -1"):
        processor.upgraded({}, -1)
    with pytest.raises(Fail) as raised:
        processor.upgraded(5, 1)
    assert raised.value.reason == "STATE_UPGRADE_FAILED"


async def test_upgrades_with_the_bytes_codec_get_bytes() -> None:
    processor = Processor("orders", state=bytes, codec=BYTES, version=2)
    processor.upgrade(1)(lambda old: old + b"!")
    processor.call(lambda step: step.state)

    assert (await answer(processor, asked(b"old", 0))).response == b"old!"
