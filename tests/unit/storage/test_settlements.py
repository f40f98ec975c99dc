"""A batch of settlements: its arrays that concern jobs, and its effects, without PostgreSQL.

An array has a place per item; it is left out where no item has a value.
"""

import dataclasses
import datetime as dt
import json
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, cast
from unittest import mock

from progressor.clock import SystemClock
from progressor.domain.gates.constraint import Constraints
from progressor.domain.jobs.graph import NodePlan, plan_nodes
from progressor.domain.jobs.job import NodeSpec, StartNodes
from progressor.domain.processes.process import JobOptions, Part, ProcessKey
from progressor.domain.processes.settlement import Fail, Finish, Settlement
from progressor.domain.processes.task import TaskError, TaskType
from progressor.settings.sections import Commit
from progressor.storage.commit.group_commit import CommitContext
from progressor.storage.postgres.context import StorageContext
from progressor.storage.postgres.functions import Functions
from progressor.storage.steps.settlement_columns import job_columns
from progressor.storage.steps.settlements import Entry, LeaseLost, Settlements
from tests.support.builders import make_key, make_success, seconds
from tests.support.clock import START

LEADER = make_key("leader")
DONE = Finish(make_success().intent)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
    """A settlement of a process that may have a part in a job."""

    settlement: Settlement = DONE
    part: Part | None = None
    plan: NodePlan | None = None
    trace_context: Mapping[str, str] = dataclasses.field(default_factory=dict)


def columns(*items: Item) -> Mapping[str, Any]:
    return defaultdict(lambda: None, job_columns(cast("Any", items)))


def an_addition(
    leader: ProcessKey, action: StartNodes, known: Mapping[str, int] = {}, **fields: Any
) -> Item:
    settlement = Finish(make_success(action).intent)
    return Item(settlement=settlement, plan=plan_nodes(leader, action, known), **fields)


def test_followers_say_whom_they_follow() -> None:
    found = columns(Item(), Item(part=Part(leader=LEADER, node=4)))

    assert found == {
        "leader_slot": [None, LEADER.slot],
        "leader_namespace": [None, LEADER.namespace],
        "leader_id": [None, LEADER.process_id],
        "node": [None, 4],
    }


def test_new_nodes_name_the_place_of_their_leader_and_each_others_ordinals() -> None:
    one = StartNodes(nodes=(NodeSpec(name="a"), NodeSpec(name="b", predecessors=("a",))))
    other = StartNodes(nodes=(NodeSpec(name="c", namespace="else", process_id="p", args=b"1"),))

    found = columns(Item(), an_addition(LEADER, one), Item(), an_addition(make_key("other"), other))

    assert found["l_item"] == [2, 4]
    assert found["g_leader"] == [1, 1, 2]
    assert found["g_ordinal"] == [1, 2, 1]
    assert found["g_name"] == ["a", "b", "c"]
    assert found["g_namespace"] == [LEADER.namespace, LEADER.namespace, "else"]
    assert found["g_process_id"] == ["leader/a", "leader/b", "p"]
    assert found["g_args"] == [b"", b"", b"1"]
    assert found["g_predecessors"] == [None, "{1}", None]
    assert found["g_successors"] == ["{2}", None, None]
    assert [found[name] for name in ("a_leader", "a_ordinal", "a_successors")] == [None] * 3


def test_nodes_that_were_there_get_more_successors() -> None:
    nodes = (
        NodeSpec(name="c", predecessors=("a", "b")),
        NodeSpec(name="d", predecessors=("a",)),
    )

    found = columns(an_addition(LEADER, StartNodes(nodes=nodes), {"a": 1, "b": 2}))

    assert found["g_ordinal"] == [3, 4]
    assert found["g_predecessors"] == ["{1,2}", "{1}"]
    assert (found["a_leader"], found["a_ordinal"]) == ([1, 1], [1, 2])
    assert found["a_successors"] == ["{3,4}", "{3}"]


def test_what_a_job_is_said_to_be_goes_with_its_leader() -> None:
    node = NodeSpec(name="a")
    action = StartNodes(
        nodes=(node,), deadline=START, schedule_id="nightly", caller_context={"tenant": "t"}
    )
    other = StartNodes(nodes=(node,), timeout=seconds(1.5))

    found = columns(
        an_addition(LEADER, action, trace_context={"traceparent": "p"}),
        an_addition(make_key("other"), other),
    )

    assert found["l_deadline_at"] == [START, None]
    assert found["l_timeout"] == [None, 1.5]
    assert found["l_schedule_id"] == ["nightly", None]
    assert _decoded(found["l_caller_context"]) == [{"tenant": "t"}, None]
    assert _decoded(found["l_trace_context"]) == [{"traceparent": "p"}, None]


def test_options_and_constraints_are_there_where_a_node_has_some() -> None:
    nodes = (
        NodeSpec(name="a"),
        NodeSpec(name="b", options=JobOptions(target="t:1"), constraints=Constraints(priority=1)),
    )

    found = columns(an_addition(LEADER, StartNodes(nodes=nodes)))

    assert _decoded(found["g_options"]) == [None, {"target": "t:1"}]
    constraints = found["g_constraints"]
    assert constraints is not None
    assert [each is None for each in constraints] == [True, False]


def _decoded(column: list[Any] | None) -> list[Any]:
    assert column is not None
    return [None if each is None else json.loads(each) for each in column]


async def test_effects_of_a_batch_whose_leases_are_all_lost_are_left_to_the_scans() -> None:
    """A gated process that was removed meanwhile may leave a locked order to be looked at again."""
    pool: Any = mock.Mock()
    context = StorageContext(
        pool=pool,
        functions=Functions(),
        clock=SystemClock(),
        replica_id=1,
        statement_timeout=dt.timedelta(seconds=1),
    )
    settlements = Settlements(
        context, settings=Commit(), commit=CommitContext(), step_grace=dt.timedelta()
    )
    entry = Entry(
        key=LEADER,
        task_id=1,
        task_type=TaskType.CALL,
        attempt=1,
        token=1,
        settlement=Fail(TaskError(code=9, reason="BROKEN", message="")),
        process=None,
        continues=False,
        expires_after=dt.timedelta(seconds=1),
        is_gated=True,
    )
    again = [LEADER.namespace, None, None, None, None, "order"]
    answer = mock.Mock(started=None, item=None, job_effects=None, effects=[again])
    function = settlements._settle_tasks

    with mock.patch.object(function, "execute", mock.AsyncMock(return_value=[answer])):
        outcomes = await settlements._write(function, mock.Mock(), [entry], again=False)

    assert outcomes == [LeaseLost()]
