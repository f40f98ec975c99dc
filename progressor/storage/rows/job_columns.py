"""The arrays of a batch that concern jobs, as ``settle_job_tasks.sql`` takes them."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from progressor.domain.jobs.graph import NodePlan
from progressor.domain.jobs.job import StartNodes
from progressor.domain.processes.process import Part, ProcessKey
from progressor.domain.processes.settlement import Break, Finish, Settlement
from progressor.storage.postgres import arrays
from progressor.storage.rows import tasks as rows
from progressor.storage.rows.constraints import constraints_text
from progressor.storage.rows.job_membership import options_text


class Item(Protocol):
    """What is needed of a settlement to write."""

    @property
    def settlement(self) -> Settlement:
        """What is to be written."""

    @property
    def part(self) -> Part | None:
        """The process's part in jobs."""

    @property
    def plan(self) -> NodePlan | None:
        """The nodes that the step adds."""

    @property
    def trace_context(self) -> Mapping[str, str]:
        """What goes with the nodes that are added."""


Columns = dict[str, arrays.Column | None]

_NO_LEADERS: Columns = dict.fromkeys(("leader_slot", "leader_namespace", "leader_id"))
_NO_PLANS: Columns = dict.fromkeys((
    "l_item", "l_deadline_at", "l_timeout", "l_schedule_id", "l_caller_context", "l_trace_context",
    "g_leader", "g_ordinal", "g_name", "g_slot", "g_namespace", "g_process_id", "g_args",
    "g_options", "g_constraints", "g_predecessors", "g_successors",
    "a_leader", "a_ordinal", "a_successors",
))  # fmt: skip
_NOTHING_APPENDED: Columns = dict.fromkeys(("a_leader", "a_ordinal", "a_successors"))


def columns(batch: Sequence[Item]) -> Columns:
    """Return the arrays of a batch; None where no item has a value."""
    parts = [entry.part for entry in batch]
    return {
        **_leader_columns([None if part is None else part.leader for part in parts]),
        "node": _node_column(parts),
        "leads": _leads_column(batch),
        "fails_job": _fails_column(batch),
        **_plan_columns(batch),
    }


def _leader_columns(leaders: Sequence[ProcessKey | None]) -> Columns:
    if not any(leaders):
        return _NO_LEADERS
    return {
        "leader_slot": arrays.Int2Column([key and key.slot for key in leaders]),
        "leader_namespace": arrays.TextColumn([key and key.namespace for key in leaders]),
        "leader_id": arrays.TextColumn([key and key.process_id for key in leaders]),
    }


def _node_column(parts: Sequence[Part | None]) -> arrays.Column | None:
    nodes = [None if part is None else part.node for part in parts]
    return arrays.Int4Column(nodes) if any(nodes) else None


def _leads_column(batch: Sequence[Item]) -> arrays.Column | None:
    leads = [
        entry.plan is not None or (entry.part is not None and entry.part.led_by is not None)
        for entry in batch
    ]
    return arrays.BoolColumn(leads) if any(leads) else None


def _fails_column(batch: Sequence[Item]) -> arrays.Column | None:
    fails = [isinstance(it.settlement, Break) and it.settlement.fails_job for it in batch]
    return arrays.BoolColumn(fails) if any(fails) else None


def _plan_columns(batch: Sequence[Item]) -> Columns:
    planned = [
        (item, entry, entry.plan, _action(entry))
        for item, entry in enumerate(batch, 1)
        if entry.plan is not None
    ]
    if not planned:
        return _NO_PLANS
    actions = [action for *_, action in planned]
    nodes = [
        (leader, node, action)
        for leader, (_, _, plan, action) in enumerate(planned, 1)
        for node in plan.nodes
    ]
    appended = [
        (leader, ordinal, successors)
        for leader, (_, _, plan, _) in enumerate(planned, 1)
        for ordinal, successors in plan.appended.items()
    ]
    return {
        "l_item": arrays.Int4Column([item for item, *_ in planned]),
        "l_deadline_at": arrays.InstantColumn([action.deadline for action in actions]),
        "l_timeout": arrays.Float8Column(
            [action.timeout and action.timeout.total_seconds() for action in actions]
        ),
        "l_schedule_id": arrays.TextColumn([action.schedule_id for action in actions]),
        "l_caller_context": arrays.JsonColumn(
            [rows.json_text(action.caller_context) for action in actions]
        ),
        "l_trace_context": arrays.JsonColumn(
            [rows.json_text(entry.trace_context) for _, entry, *_ in planned]
        ),
        "g_leader": arrays.Int4Column([leader for leader, *_ in nodes]),
        "g_ordinal": arrays.Int4Column([node.ordinal for _, node, _ in nodes]),
        "g_name": arrays.TextColumn([node.spec.name for _, node, _ in nodes]),
        "g_slot": arrays.Int2Column([node.follower.slot for _, node, _ in nodes]),
        "g_namespace": arrays.TextColumn([node.follower.namespace for _, node, _ in nodes]),
        "g_process_id": arrays.TextColumn([node.follower.process_id for _, node, _ in nodes]),
        "g_args": arrays.ByteaColumn([node.spec.args for _, node, _ in nodes]),
        "g_options": arrays.JsonColumn([options_text(node.spec.options) for _, node, _ in nodes]),
        "g_constraints": arrays.JsonColumn(
            [constraints_text(node.spec.constraints) for _, node, _ in nodes]
        ),
        "g_predecessors": arrays.TextColumn([_literal(node.predecessors) for _, node, _ in nodes]),
        "g_successors": arrays.TextColumn([_literal(node.successors) for _, node, _ in nodes]),
        **_appended_columns(appended),
    }


def _appended_columns(
    appended: Sequence[tuple[int, int, tuple[int, ...]]],
) -> Columns:
    if not appended:
        return _NOTHING_APPENDED
    return {
        "a_leader": arrays.Int4Column([leader for leader, _, _ in appended]),
        "a_ordinal": arrays.Int4Column([ordinal for _, ordinal, _ in appended]),
        "a_successors": arrays.TextColumn([_literal(successors) for _, _, successors in appended]),
    }


def _action(entry: Item) -> StartNodes:
    settlement = entry.settlement
    assert isinstance(settlement, Finish), "a plan without a step that succeeded"
    action = settlement.intent.action
    assert isinstance(action, StartNodes), "a plan without its action"
    return action


def _literal(ordinals: Sequence[int]) -> str | None:
    """Return ordinals as PostgreSQL reads an array: an array of arrays has them of one length."""
    return "{" + ",".join(map(str, ordinals)) + "}" if ordinals else None
