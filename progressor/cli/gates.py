"""Commands about gates: list, get, set, delete."""

from collections.abc import Iterator, Mapping
from typing import Annotated

from cyclopts.types import Int32, Int64
from rich.console import RenderableType

from progressor.cli.input.options import PAGE_MAX, NamespaceOptions, client_of, option
from progressor.cli.output import Column, facts, instant_text, one_line, show, table
from progressor.domain.gates.gate import Gate, GateWaiter
from progressor.sdk.client.gates import GateView
from progressor.sdk.values.constraints import GateHolder

_COUNTED_MAX = 1000
"""The engine counts waiting tasks up to this number."""


def _waiting(gate: Gate) -> str:
    counted = f"{gate.waiting_count:,}"
    return f"{counted} or more" if gate.waiting_count >= _COUNTED_MAX else counted


_GATES: Mapping[str, Column[Gate]] = {
    "gate": lambda it: one_line(it.gate),
    "held": lambda it: f"{it.held:,} of {it.capacity:,}",
    "waiting": _waiting,
    "revision": lambda it: str(it.revision),
    "updated": lambda it: instant_text(it.updated_at),
}
_HOLDERS: Mapping[str, Column[GateHolder]] = {
    "held by": lambda it: one_line(it.process_id),
    "task": lambda it: str(it.task_id),
    "held since": lambda it: instant_text(it.held_at),
    "until the end of": lambda it: f"the {it.hold}",
    "": lambda it: "reserved: its other gates are full" if it.reserved else "",
}
_WAITERS: Mapping[str, Column[tuple[int, GateWaiter]]] = {
    "": lambda it: str(it[0]),
    "next": lambda it: one_line(it[1].process_id),
    "task": lambda it: str(it[1].task_id),
    "priority": lambda it: f"{it[1].priority}{', before all others' if it[1].is_aged else ''}",
    "waits since": lambda it: instant_text(it[1].since),
    "for all of": lambda it: ", ".join(map(one_line, it[1].gates)),
}


async def list_gates(*, options: NamespaceOptions = NamespaceOptions()) -> None:
    """Print the gates of a namespace in the order of their keys."""
    async with client_of(options) as client:
        found = [it async for it in client.gates.list(page_size=PAGE_MAX)]
    show({"gates": found}, table(_GATES, found), as_json=options.json)


async def get(gate: str, /, *, options: NamespaceOptions = NamespaceOptions()) -> None:
    """Print a gate, the tasks that hold it, and the tasks that wait for it in their order.

    At most 100 of each. A task that needs several gates waits in the queue of a full one.
    """
    async with client_of(options) as client:
        view = await client.gates.get(gate)
    show(view, *_people(view), as_json=options.json)


async def set_capacity(
    gate: str,
    /,
    *,
    capacity: Annotated[Int32, option("How many tasks may hold the gate; 0 for none.")],
    revision: Annotated[Int64, option("Change it only at this revision; 0: at any.")] = 0,
    options: NamespaceOptions = NamespaceOptions(),
) -> None:
    """Set the capacity of a gate, which is created if it does not exist.

    A larger capacity admits waiting tasks. If more places are held than the new capacity, available
    tasks give theirs back, the newest first; running tasks keep theirs.
    """
    async with client_of(options) as client:
        found = await client.gates.set(gate, capacity, expected_revision=revision)
    show(found, _gate(found), as_json=options.json)


async def delete(gate: str, /, *, options: NamespaceOptions = NamespaceOptions()) -> None:
    """Delete a gate that no task holds or waits for."""
    async with client_of(options) as client:
        await client.gates.delete(gate)
    show({"deleted": gate}, f"deleted gate {gate}", as_json=options.json)


def _people(view: GateView) -> Iterator[RenderableType]:
    yield _gate(view.gate)
    if view.holders:
        yield from ("", table(_HOLDERS, view.holders))
    if view.line:
        yield from ("", table(_WAITERS, enumerate(view.line, start=1)))


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
