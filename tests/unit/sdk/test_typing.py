"""What is asked for by its type comes back as that type: for mypy, and when it runs."""

import dataclasses
from typing import Annotated, Any, Literal, NewType, assert_type

import msgspec
import pytest

from progressor.sdk import (
    BYTES,
    Client,
    JobView,
    Node,
    NodeOutcome,
    NodeState,
    Processor,
    RejectedError,
    Reply,
    Snapshot,
    Step,
    SyncClient,
    TaskReply,
)
from progressor.sdk.codec.kinds import admits_none
from progressor.sdk.testing import JobRehearsal, Rehearsal
from tests.support.processor.rehearsed import chain


@dataclasses.dataclass(frozen=True)
class Order:
    item: str


@dataclasses.dataclass(frozen=True)
class Receipt:
    total: int


class Pay(msgspec.Struct, tag=True):
    amount: int


class Ship(msgspec.Struct, tag=True):
    to: str


orders = Processor("orders", state=Order)


@orders.init
def place(step: Step[Order]) -> Receipt:
    order = step.args_as(Order)
    assert_type(order, Order)
    step.state = order
    step.emit({"placed": order.item})
    return Receipt(total=42)


@orders.call
def deal(step: Step[Order]) -> str | None:
    assert_type(step.state, Order)
    assert_type(step.args_as(Order | None), Order | None)
    return None


def of_a_step(step: Step[Order]) -> None:
    """Say what mypy makes of a step; nothing runs it."""
    assert_type(step.args_as(list[str]), list[str])
    assert_type(step.args_as(Any), Any)
    assert_type(step.args_as(Pay | Ship), Pay | Ship)
    assert_type(step.results_as(int), dict[str, int])
    assert_type(step.results_as(Pay | Ship), dict[str, Pay | Ship])


async def of_the_client(client: Client) -> None:
    """Say what mypy makes of the client; nothing runs it."""
    assert_type(await client.call("o"), Reply[Any])
    assert_type(await client.call("o", response_type=Receipt), Reply[Receipt])
    assert_type((await client.start("o", response_type=Receipt)).response, Receipt)
    assert_type((await client.repair("o", response_type=list[int])).response, list[int])
    assert_type((await client.call("o", response_type=int | None)).response, int | None)
    assert_type(await client.await_task("o", task_id=1, response_type=Receipt), TaskReply[Receipt])
    assert_type(await client.get("o"), Snapshot[Any])
    # A process has no state until a step sets one.
    assert_type((await client.get("o", state_type=Order)).process.state, Order | None)
    assert_type(await client.jobs.get("j"), JobView[Any])
    found = await client.jobs.get("j", result_type=Receipt)
    assert_type(found, JobView[Receipt])
    assert_type(found["sum"], Node[Receipt])
    assert_type(found["sum"].result, Receipt | None)
    (await client.call("o", response_type=Receipt)).response.tootal  # type: ignore[attr-defined]  # noqa: B018
    await client.call("o", respose_type=Receipt)  # type: ignore[call-arg]


def of_the_blocking_client(client: SyncClient) -> None:
    """Say what mypy makes of the blocking client; nothing runs it."""
    assert_type(client.call("o"), Reply[Any])
    assert_type(client.call("o", response_type=Receipt).response, Receipt)
    assert_type(client.get("o", state_type=Order).process.state, Order | None)
    assert_type(client.jobs.get("j", result_type=Receipt)["sum"].result, Receipt | None)


async def test_a_rehearsal_gives_the_types_that_are_asked_for() -> None:
    finishing = Processor("orders", state=Order)
    finishing.init(place)
    finishing.call(lambda step: step.complete(Receipt(total=7)))
    order = Rehearsal(finishing)
    placed = await order.start(Order("tea"), response_type=Receipt)
    assert_type(placed, Reply[Receipt])
    await order.call()

    assert placed.response == Receipt(total=42)
    assert_type(order.state, Order | None)
    assert assert_type(order.result_as(Receipt), Receipt) == Receipt(total=7)
    assert assert_type(order.events_as(dict[str, str]), list[dict[str, str]]) == [{"placed": "tea"}]


async def test_a_rehearsed_job_gives_the_types_that_are_asked_for() -> None:
    leader = Processor("jobs")
    leader.init(lambda step: step.start_nodes(chain("a")))
    leader.join(lambda step: step.complete(sum(step.results_as(int).values())))
    job = await JobRehearsal.led_by(leader)
    await job.complete("a", 3)

    assert assert_type(job.result_as(int), int) == 3
    assert assert_type(job.args("a", int | None), int | None) is None


async def test_args_that_are_not_there_are_not_of_the_type_asked_for() -> None:
    processor = Processor("orders")
    processor.init(lambda step: step.set_timer(after=1))
    processor.call(lambda step: step.args_as(Order).item)
    processor.timeout(lambda step: step.args_as(Order).item)
    order = Rehearsal(processor)
    await order.start()

    with pytest.raises(RejectedError, match="args cannot be read: expected `Order`, got an empty"):
        await order.call()
    await order.advance(600)
    assert order.detail == "expected `Order`, got an empty payload"


async def test_what_is_not_there_is_not_of_the_type_asked_for() -> None:
    order = Rehearsal(orders)
    await order.start(Order("tea"))

    with pytest.raises(ValueError, match="expected `str`, got an empty payload"):
        await order.call(response_type=str)
    assert (await order.call(response_type=str | None)).response is None
    with pytest.raises(ValueError, match="expected `Receipt`, got an empty payload"):
        order.result_as(Receipt)


async def test_a_node_without_the_result_that_its_leader_asks_for_is_named() -> None:
    leader = Processor("jobs")
    leader.init(lambda step: step.unset_timer())
    leader.join(lambda step: step.complete(step.results_as(int)))
    job = Rehearsal(leader)
    await job.start()
    await job.join([NodeOutcome(name="a", state=NodeState.DONE)])

    assert (
        job.detail == "the result of node 'a' cannot be read: expected `int`, got an empty payload"
    )


async def test_bytes_that_are_asked_for_are_never_none() -> None:
    processor = Processor("orders", codec=BYTES)
    seen: list[bytes] = []

    @processor.init
    def note(step: Step[Any]) -> None:
        seen.append(step.args_as(bytes))

    await Rehearsal(processor).start()

    assert seen == [b""]


NULLABLE = (
    Any,
    object,
    None,
    type(None),
    int | None,
    NewType("Maybe", object),
    Annotated[int | None, "a number"],
)
OTHERS = (NewType("Number", int), Literal["a"], int, list[int | None], int | str, Order)


@pytest.mark.parametrize("kind", [*NULLABLE, *OTHERS])
def test_whether_a_type_admits_none(kind: Any) -> None:
    assert admits_none(kind) is (kind in NULLABLE)
