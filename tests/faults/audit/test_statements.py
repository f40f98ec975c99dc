"""Every kind of statement that changes something, with every fault in the middle of it.

Whatever the client was told: there are as many entries as changes, in each snapshot.
"""

import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Mapping

import pytest

from progressor import errors, job_errors
from progressor.sdk import (
    Every,
    Graph,
    NamespaceConfig,
    ProcessStatus,
    Role,
    ScheduledStart,
    ScheduleSpec,
)
from tests.support.faults.env import ATTEMPT_SECONDS, UNKNOWN, FaultEnv, cells, insist
from tests.support.faults.faults import STALLS

pytestmark = pytest.mark.asyncio(loop_scope="module")

_ENTRIES = """(
    SELECT count(*) FROM progressor.audit_entries
    WHERE entry ->> 'method' = %(method)s AND entry ->> 'object_id' = %(name)s AND result = 'OK')"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Change:
    """A request about `name`, the statement that carries it out, and how often it was done."""

    method: str
    statement: str
    done: str
    act: Callable[[FaultEnv, str], Awaitable[object]]
    prepare: Callable[[FaultEnv, str], Awaitable[object]] | None = None


def _config(name: str, *, workers: int) -> NamespaceConfig:
    return NamespaceConfig(name=name, processor_targets=("h:1",), worker_count_max=workers)


def _graph() -> Graph:
    graph = Graph()
    graph.node("a", b"")
    return graph


_SPEC = ScheduleSpec(target=ScheduledStart(), times=Every(3600))
_PROCESS = "FROM progressor.processes WHERE namespace = %(namespace)s AND process_id = %(name)s"

CHANGES: Mapping[str, Change] = {
    it.method: it
    for it in (
        Change(
            method="Terminate",
            statement='"halt_process"(',
            done=f"SELECT count(*) {_PROCESS} AND status = 'finished'",
            prepare=lambda env, name: insist(env.client.put, name, idempotency_key="k"),
            act=lambda env, name: env.client.terminate(name, reason="x", timeout=ATTEMPT_SECONDS),
        ),
        Change(
            method="Put",
            statement='"put_process"(',
            done=f"SELECT count(*) {_PROCESS}",
            act=lambda env, name: env.client.put(name, timeout=ATTEMPT_SECONDS),
        ),
        Change(
            method="Remove",
            statement='"remove_process"(',
            done=f"SELECT 1 - count(*) {_PROCESS}",
            prepare=lambda env, name: insist(env.client.put, name, idempotency_key="k"),
            act=lambda env, name: env.client.remove(name, timeout=ATTEMPT_SECONDS),
        ),
        Change(
            method="Repair",
            statement='"admit_requests"(',
            done="SELECT count(*) FROM progressor.tasks WHERE namespace = %(namespace)s"
            " AND process_id = %(name)s AND task_type = 'repair'",
            prepare=lambda env, name: insist(
                env.client.put, name, status=ProcessStatus.ERROR, detail="x", idempotency_key="k"
            ),
            act=lambda env, name: env.client.repair(
                name, accept_only=True, timeout=ATTEMPT_SECONDS
            ),
        ),
        Change(
            method="SubmitJob",
            statement='"admit_jobs"(',
            done=f"SELECT count(*) {_PROCESS}",
            act=lambda env, name: env.client.jobs.submit(name, _graph(), timeout=ATTEMPT_SECONDS),
        ),
        Change(
            method="SetGate",
            statement='"set_gate"(',
            done="SELECT coalesce(sum(revision), 0) FROM progressor.gates WHERE gate = %(name)s",
            act=lambda env, name: env.client.gates.set(name, 3, timeout=ATTEMPT_SECONDS),
        ),
        Change(
            method="PauseSchedule",
            statement="SET paused = true",
            done="SELECT sum(revision) - 1 FROM progressor.schedules WHERE schedule_id = %(name)s",
            prepare=lambda env, name: insist(
                env.client.schedules.create,
                name,
                _SPEC,
                unless=(job_errors.ScheduleAlreadyExistsError,),
            ),
            act=lambda env, name: env.client.schedules.pause(name, timeout=ATTEMPT_SECONDS),
        ),
        Change(
            method="UpdateNamespace",
            statement="SET revision = revision + 1, config",
            done="SELECT sum(revision) - 1 FROM progressor.namespaces WHERE name = %(name)s",
            prepare=lambda env, name: insist(
                env.client.namespaces.create,
                _config(name, workers=1),
                unless=(errors.NamespaceAlreadyExistsError,),
            ),
            act=lambda env, name: env.client.namespaces.update(
                _config(name, workers=2), timeout=ATTEMPT_SECONDS
            ),
        ),
        Change(
            method="AddBinding",
            statement="INSERT INTO progressor.access_bindings",
            done="SELECT count(*) FROM progressor.access_bindings WHERE %(name)s"
            " = principal || ' ' || role || ' ' || namespace",
            act=lambda env, name: env.client.access.add_binding(
                name.split(" ", maxsplit=1)[0], Role.READER, "n", timeout=ATTEMPT_SECONDS
            ),
        ),
    )
}


def counts(env: FaultEnv, change: Change, name: str) -> tuple[int, int]:
    """Return how often something was done, and how many entries say so, in one snapshot."""
    [(done, entries)] = env.rows(
        f"SELECT ({change.done})::integer, {_ENTRIES}::integer",
        name=name,
        method=change.method,
    )
    return done, entries


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("method", "fault"),
    cells(CHANGES, lambda row, fault: fault not in STALLS or fault == STALLS[row % 2]),
)
async def test_there_are_as_many_entries_as_changes_whatever_breaks(
    env: FaultEnv, method: str, fault: str
) -> None:
    change, name = CHANGES[method], env.fresh()
    if method == "AddBinding":
        name = f"token:{name} reader n"
    if change.prepare is not None:
        await change.prepare(env, name)
    async with env.cell(fault) as cell, cell.under(change.statement):
        with contextlib.suppress(*UNKNOWN):
            await change.act(cell, name)
        done, entries = counts(env, change, name)
        assert done == entries
    # The same request again, which learns what has become of the first.
    with contextlib.suppress(Exception):
        await change.act(env, name)

    done, entries = counts(env, change, name)
    assert done == entries
