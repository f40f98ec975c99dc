"""Commands about gates: list, get, set, delete."""

from typing import Annotated

from cyclopts.types import Int32, Int64
from rich.console import RenderableType
from rich.text import Text

from progressor.cli.input.engines import client_of
from progressor.cli.input.inputs import option
from progressor.cli.input.options import DEFAULT_TARGET, Target
from progressor.cli.output.output import Output, facts, instant_text, one_line, table
from progressor.sdk.values.gates import Gate, GateHolder, GateView, GateWaiter

_COUNTED_MAX = 1000
"""Tasks that wait for a gate, as far as an engine counts them."""

_HELD = ("held by", "task", "held since", "until the end of", "")
_NEXT = ("", "next", "task", "priority", "waits since", "for all of")


async def list_gates(*, target: Target = DEFAULT_TARGET) -> None:
    """Print the gates of a namespace in the order of their keys."""
    async with client_of(target) as client:
        found = [it async for it in client.gates.list(page_size=1000)]
    rows = [
        [
            one_line(it.gate),
            f"{it.held:,} of {it.capacity:,}",
            _waiting(it),
            str(it.revision),
            instant_text(it.updated_at),
        ]
        for it in found
    ]
    people = table(("gate", "held", "waiting", "revision", "updated"), rows)
    Output(as_json=target.json).show({"gates": found}, people)


async def get(gate: str, /, *, target: Target = DEFAULT_TARGET) -> None:
    """Print a gate, who holds it and since when, and who waits for it, in order.

    At most 100 of each. A task that wants several gates stands in the line of the one that is full.
    """
    async with client_of(target) as client:
        view = await client.gates.get(gate)
    Output(as_json=target.json).show(view, *_people(view))


async def set_capacity(
    gate: str,
    /,
    *,
    capacity: Annotated[Int32, option("How many may hold it; 0: it admits no task.")],
    revision: Annotated[Int64, option("Only if it is still at this revision.")] = 0,
    target: Target = DEFAULT_TARGET,
) -> None:
    """Set the capacity of a gate, which is made where it is not there.

    With more, who waits is promoted. With less than is held, available tasks give way, the youngest
    first; what runs keeps its place.
    """
    async with client_of(target) as client:
        found = await client.gates.set(gate, capacity, expected_revision=revision)
    Output(as_json=target.json).show(found, _gate(found))


async def delete(gate: str, /, *, target: Target = DEFAULT_TARGET) -> None:
    """Delete a gate that has no holders and that no task names."""
    async with client_of(target) as client:
        await client.gates.delete(gate)
    Output(as_json=target.json).show({"deleted": gate}, Text(f"gate {gate} is deleted"))


def _people(view: GateView) -> list[RenderableType]:
    shown: list[RenderableType] = [_gate(view.gate)]
    if view.holders:
        shown += ["", table(_HELD, [*map(_holder, view.holders)])]
    if view.line:
        rows = [[str(place), *_waiter(it)] for place, it in enumerate(view.line, start=1)]
        shown += ["", table(_NEXT, rows)]
    return shown


def _gate(gate: Gate) -> RenderableType:
    return facts(
        {
            "gate": f"{one_line(gate.gate)} in {gate.namespace}",
            "capacity": f"{gate.capacity:,}",
            "held": f"{gate.held:,}",
            "waiting": _waiting(gate),
            "revision": str(gate.revision),
            "created": instant_text(gate.created_at),
            "updated": instant_text(gate.updated_at),
        }
    )


def _waiting(gate: Gate) -> str:
    counted = f"{gate.waiting_count:,}"
    return f"{counted} or more" if gate.waiting_count >= _COUNTED_MAX else counted


def _holder(holder: GateHolder) -> list[str]:
    return [
        one_line(holder.process_id),
        str(holder.task_id),
        instant_text(holder.held_at),
        f"the {holder.hold}",
        "reserved: its other gates are full" if holder.reserved else "",
    ]


def _waiter(waiter: GateWaiter) -> list[str]:
    return [
        one_line(waiter.process_id),
        str(waiter.task_id),
        f"{waiter.priority}, before all others" if waiter.aged else str(waiter.priority),
        instant_text(waiter.since),
        ", ".join(map(one_line, waiter.gates)),
    ]
