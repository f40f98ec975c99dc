"""All that the engine does for jobs, with every fault in the middle of it.

Whatever happens, each node's follower is settled once (each leaves one event), and the leader gets
one join once all of them have ended.

Each operation meets a third of the faults, every fault a third of the operations, and of the two
stalls, which take long, one in three does; with FAULTS_ALL=1 all meet all.
"""

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

import psycopg
import pytest
import pytest_asyncio

from progressor import errors, job_errors
from progressor.sdk import Constraints, Graph, NodeOptions, RetryPolicy
from progressor.v1 import nodes_pb2
from progressor.v1.processor_service_pb2 import Complete, ProcessResponse
from tests.support.engine.replica import Replica, answering, broken, response, timer
from tests.support.faults.env import UNCACHED, FaultEnv, cells, insist, open_fault_env
from tests.support.faults.faults import FAULTS, STALLS
from tests.support.postgres.proxy import Proxy
from tests.support.processor.scripted import Answer, Hang, Step

pytestmark = pytest.mark.asyncio(loop_scope="module")

SETTINGS = UNCACHED
SETTLE, MAINTAIN = '"settle_job_tasks"(', '"maintain_job"('
SOON = 0.3
NODES = """
    SELECT name, state::text FROM progressor.job_nodes
    WHERE namespace = %(namespace)s AND process_id = %(job)s ORDER BY ordinal"""
STATE = """
    SELECT state::text FROM progressor.jobs
    WHERE namespace = %(namespace)s AND process_id = %(job)s"""
JOINS = """
    SELECT status::text, count(*) FROM progressor.tasks
    WHERE namespace = %(namespace)s AND process_id = %(job)s AND task_type = 'join' GROUP BY 1"""

Pairs = Mapping[str, Sequence[str]]
"""Names of nodes, each with the names of those that it comes after."""

PAIR: Pairs = {"a": (), "b": ("a",)}
DIAMOND: Pairs = {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}
WAITS = answering(b"waits", set_timer=timer(3600))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobEnv(FaultEnv):
    def script(self, job_id: str, pairs: Pairs, steps: Mapping[str, Step] = {}) -> None:
        """Have every node be done at once, but for those that have a first step of their own."""
        for name in pairs:
            first = [steps[name]] if name in steps else []
            self.processor.on_process(f"{job_id}/{name}", *first, done(name))

    async def submit(
        self,
        pairs: Pairs,
        steps: Mapping[str, Step] = {},
        *,
        gate: str = "",
        deadline: float | None = None,
    ) -> str:
        """Submit a job whose nodes are done at once but for some steps, until it is accepted.

        The node named `gate` has a gate of its own.
        """
        job_id, graph = self.fresh(), Graph()
        self.script(job_id, pairs, steps)
        gated = NodeOptions(constraints=Constraints(gates={f"gate of {job_id}": 1}))
        for name, after in pairs.items():
            graph.node(name, b"1", after=after, **(gated if name == gate else {}))
        await insist(self.client.jobs.submit, job_id, graph, deadline=deadline, idempotency_key="k")
        return job_id

    async def lead(self, job_id: str, pairs: Pairs, *then: Step) -> None:
        """Start a leader that has a processor of its own, and steps for what comes after."""
        nodes = [nodes_pb2.NodeSpec(name=name, predecessors=pairs[name]) for name in pairs]
        first = answering(start_nodes=nodes_pb2.StartNodes(nodes=nodes))
        self.processor.on_process(job_id, first, *then)
        await insist(self.client.start, job_id, idempotency_key="k")

    async def held(self, pairs: Pairs, hangs: Mapping[str, Hang]) -> str:
        """Submit a job that has these steps of nodes in hand."""
        job_id = await self.submit(pairs, hangs)
        for name in hangs:
            await self.asked(f"{job_id}/{name}")
        return job_id

    def state(self, job_id: str) -> str | None:
        found = self.rows(STATE, job=job_id)
        return found[0][0] if found else None

    def nodes(self, job_id: str) -> dict[str, str]:
        return dict(self.rows(NODES, job=job_id))

    def joins(self, job_id: str) -> dict[str, int]:
        return dict(self.rows(JOINS, job=job_id))

    async def at_rest(self) -> None:
        """Wait until nothing is in hand or due, and nothing is left to do for any job."""
        await FaultEnv.at_rest(self)
        upkeep_due = "SELECT FROM progressor.jobs WHERE upkeep_due_at IS NOT NULL"
        await self.until(lambda: not self.rows(upkeep_due))

    async def ended(self, job_id: str, state: str, **nodes: str) -> None:
        """Wait until a job has ended as it should; then its nodes have, and each did so once."""
        await self.until(lambda: self.state(job_id) not in {"running", None})
        await FaultEnv.at_rest(self)
        assert (self.state(job_id), self.nodes(job_id)) == (state, nodes)
        for name, each in nodes.items():
            if each == "done":
                assert self.events(f"{job_id}/{name}") == [name.encode()]

    async def done(self, job_id: str, pairs: Pairs) -> None:
        """Wait until a job is done, and its leader got one join."""
        await self.ended(job_id, "done", **dict.fromkeys(pairs, "done"))
        assert self.joins(job_id) == {"finished": 1}


def end_of(name: str) -> ProcessResponse:
    """Return the answer that is done with a node, and leaves one event."""
    return response(name.encode(), complete=Complete(result=name.encode()))


def done(name: str) -> Step:
    return Answer(end_of(name))


def held(name: str) -> Hang:
    return Hang(response=end_of(name))


Play = Callable[[JobEnv], Awaitable[None]]


def accepted_under(text: str, pairs: Pairs, *, gate: str = "") -> Play:
    """Return the operation that submits a job, whose statement the text is of."""

    async def play(env: JobEnv) -> None:
        async with env.under(text):
            job_id = await env.submit(pairs, gate=gate)
        await env.done(job_id, pairs)

    return play


def end_of_nodes(pairs: Pairs, *names: str) -> Play:
    """Return the operation that settles the ends of these nodes at once."""

    async def play(env: JobEnv) -> None:
        hangs = {name: held(name) for name in names}
        job_id = await env.held(pairs, hangs)
        async with env.under(SETTLE):
            for hang in hangs.values():
                hang.released.set()
        await env.done(job_id, pairs)

    return play


async def failing_node(env: JobEnv) -> None:
    """Settle the failure of a node: what comes after it is skipped, and the job fails."""
    job_id = await env.held(DIAMOND, {"b": (hang := Hang(response=broken().response))})
    # Asked again it would be done, so it is not: its replica is not lost, but slow at most.
    env.processor.on_process(f"{job_id}/b", broken())
    async with env.under(SETTLE):
        hang.released.set()
    await env.ended(job_id, "failed", a="done", b="failed", c="done", d="skipped")
    assert env.joins(job_id) == {"error": 1}


async def node_with_a_timer(env: JobEnv) -> None:
    """Settle the first step of a node that has another one."""
    job_id = await env.held(PAIR, {"a": (hang := Hang(response=response(set_timer=timer())))})
    async with env.under(SETTLE):
        hang.released.set()
    await env.done(job_id, PAIR)


async def lost_node(env: JobEnv) -> None:
    """Hand on the lost lease of a node."""
    job_id = await env.held(PAIR, {"a": (hang := held("a"))})
    async with env.under(SETTLE):
        env.observer.execute(
            "UPDATE progressor.running SET replica_id = 0 WHERE namespace = %s AND process_id = %s",
            [env.namespace, f"{job_id}/a"],
        )
        await env.asked(f"{job_id}/a", 2)
    hang.released.set()
    await env.done(job_id, PAIR)


async def own_leader(env: JobEnv) -> None:
    """Settle a step that adds nodes to the job of the processor's own leader."""
    job_id = env.fresh()
    env.script(job_id, PAIR)
    async with env.under(SETTLE):
        await env.lead(job_id, PAIR, answering(b"end", complete=Complete()))
    await env.done(job_id, PAIR)
    assert env.events(job_id) == [b"end"]


async def join(env: JobEnv) -> None:
    """Settle the join of the processor's own leader."""
    job_id, hang = env.fresh(), held("end")
    env.script(job_id, PAIR)
    await env.lead(job_id, PAIR, hang, done("end"))
    await env.asked(job_id, 2)
    async with env.under(SETTLE):
        hang.released.set()
    await env.done(job_id, PAIR)
    assert env.events(job_id) == [b"end"]


async def join_that_adds(env: JobEnv) -> None:
    """Settle a join that adds nodes: the leader gets one more."""
    job_id = env.fresh()
    added = nodes_pb2.StartNodes(nodes=[nodes_pb2.NodeSpec(name="c", predecessors=["b"])])
    adding, more = Hang(response=response(start_nodes=added)), held("c")
    env.script(job_id, {**PAIR, "c": ("b",)}, {"c": more})
    await env.lead(job_id, PAIR, adding)
    await env.asked(job_id, 2)
    # One whose lease is lost meanwhile adds them when it is asked again.
    env.processor.on_process(job_id, answering(start_nodes=added))
    async with env.under(SETTLE):
        adding.released.set()
    await env.asked(f"{job_id}/c")
    env.processor.on_process(job_id, done("end"))
    more.released.set()
    await env.ended(job_id, "done", **dict.fromkeys("abc", "done"))
    assert env.joins(job_id) == {"finished": 2}


async def cancel(env: JobEnv) -> None:
    """Cancel a job: what has not begun never does; a step in hand goes to its end."""
    job_id = await env.held(DIAMOND, {"b": (hang := held("b"))})
    async with env.under('"cancel_job"('):
        await insist(env.client.jobs.cancel, job_id, unless=(job_errors.JobEndedError,))
    hang.released.set()
    await env.until(lambda: env.nodes(job_id)["b"] != "running")
    await env.ended(job_id, "cancelled", a="done", b="done", c="done", d="cancelled")
    assert env.joins(job_id) == {}


async def stop(env: JobEnv) -> None:
    """Stop a follower that has no step in hand when its job is cancelled."""
    job_id = await env.submit(PAIR, {"a": WAITS})
    await env.until(lambda: env.events(f"{job_id}/a") == [b"waits"])
    async with env.under(MAINTAIN):
        await insist(env.client.jobs.cancel, job_id)
    await env.until(lambda: env.nodes(job_id)["a"] != "running")
    await env.ended(job_id, "cancelled", a="cancelled", b="cancelled")
    assert env.status(f"{job_id}/a") == "error"


async def retry(env: JobEnv) -> None:
    """Retry a failed job: what failed begins again, once."""
    job_id = await env.submit(DIAMOND, {"b": broken()})
    await env.ended(job_id, "failed", a="done", b="failed", c="done", d="skipped")
    async with env.under('"retry_job"('):
        await insist(env.client.jobs.retry, job_id, unless=(job_errors.JobNotFailedError,))
    await env.ended(job_id, "done", **dict.fromkeys(DIAMOND, "done"))
    assert env.joins(job_id) == {"error": 1, "finished": 1}


async def deadline(env: JobEnv) -> None:
    """Fail a job whose deadline has passed, with a node that waits for a timer."""
    async with env.under('"fail_overdue_jobs"('):
        job_id = await env.submit(PAIR, {"a": WAITS}, deadline=SOON)
    await env.until(lambda: env.nodes(job_id)["a"] not in {"running", "ready"})
    await env.until(lambda: env.state(job_id) == "failed")
    await env.ended(job_id, "failed", a="cancelled", b="cancelled")
    assert env.joins(job_id) == {}


async def recovery(env: JobEnv) -> None:
    """Find a node whose process is gone, as it never should be."""
    job_id = await env.held(PAIR, {"a": (hang := held("a"))})
    process_of = "WHERE namespace = %s AND process_id = %s"
    async with env.under('"recover_jobs"('):
        with env.observer.transaction():
            env.observer.execute(
                """
                INSERT INTO progressor.process_counts (namespace, status_before, process_count)
                SELECT namespace, status, 1
                FROM progressor.processes
                WHERE namespace = %s AND process_id = %s
                """,
                [env.namespace, f"{job_id}/a"],
            )
            for table in ("running", "schedule", "tasks", "processes"):
                env.observer.execute(
                    f"DELETE FROM progressor.{table} {process_of}".encode(),  # noqa: S608  ours
                    [env.namespace, f"{job_id}/a"],
                )
            env.observer.execute(
                f"UPDATE progressor.jobs SET updated_at = now() - interval '1 hour' {process_of}".encode(),  # noqa: S608, E501
                [env.namespace, job_id],
            )
            env.observer.execute("UPDATE progressor.upkeep_rounds SET due_at = '-infinity'")
    # A round that was not answered is done again when the next one is due.
    env.observer.execute("UPDATE progressor.upkeep_rounds SET due_at = '-infinity'")
    await env.ended(job_id, "failed", a="failed", b="skipped")
    hang.released.set()
    assert env.joins(job_id) == {"error": 1}


async def orphan(env: JobEnv) -> None:
    """Stop a follower whose leader was removed."""
    job_id = await env.submit(PAIR, {"a": WAITS})
    await env.until(lambda: env.events(f"{job_id}/a") == [b"waits"])
    async with env.under('"stop_orphans"('):
        await insist(env.client.remove, job_id)
    await env.until(lambda: env.status(f"{job_id}/a") == "error")

    assert env.state(job_id) is None


async def removal(env: JobEnv) -> None:
    """Remove a leader: the follower that has a step in hand ends that, and is stopped."""
    job_id = await env.held(PAIR, {"a": (hang := held("a"))})
    async with env.under('"remove_process"('):
        await insist(env.client.remove, job_id, unless=(errors.ProcessNotFoundError,))
    hang.released.set()
    await env.until(lambda: env.status(f"{job_id}/a") in {"error", "finished"})

    assert env.nodes(job_id) == {}
    assert len(env.events(f"{job_id}/a")) <= 1


OPERATIONS: Mapping[str, Play] = {
    "submit": accepted_under('"admit_jobs"(', DIAMOND),
    "add": accepted_under(SETTLE, DIAMOND),
    "node": end_of_nodes(DIAMOND, "a"),
    "last node": end_of_nodes(DIAMOND, "d"),
    "two nodes": end_of_nodes(DIAMOND, "b", "c"),
    "failing node": failing_node,
    "node with a timer": node_with_a_timer,
    "lost node": lost_node,
    "own leader": own_leader,
    "join": join,
    "join that adds": join_that_adds,
    "cancel": cancel,
    "stop": stop,
    "retry": retry,
    "gated node": accepted_under(MAINTAIN, PAIR, gate="b"),
    "deadline": deadline,
    "recovery": recovery,
    "orphan": orphan,
    "removal": removal,
}


def is_chosen(row: int, fault: str) -> bool:
    """Whether a cell is among those that are always played."""
    if fault in STALLS:
        return row % 6 == 3 * STALLS.index(fault)
    return (row + list(FAULTS).index(fault)) % 3 == 0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def job_env(
    proxy: Proxy, behind: Replica, observer: psycopg.Connection[object]
) -> AsyncIterator[JobEnv]:
    async with open_fault_env(
        proxy, behind, observer, retry_policy=RetryPolicy(attempts_max=100)
    ) as env:
        yield JobEnv.of(env, proxy=proxy, observer=observer)


@pytest.mark.matrix
@pytest.mark.parametrize(("operation", "fault"), cells(OPERATIONS, is_chosen))
async def test_a_fault_in_the_middle_of_a_job_loses_nothing_and_does_nothing_twice(
    job_env: JobEnv, operation: str, fault: str
) -> None:
    recovered = job_env.points.count("job_recovered")
    async with job_env.cell(fault) as env:
        await OPERATIONS[operation](env)

    # Whatever was cut off, the engine has come to terms with it by itself.
    assert operation == "recovery" or job_env.points.count("job_recovered") == recovered


@pytest.mark.parametrize("name", ["", "/b"], ids=["leader", "follower"])
async def test_a_locked_process_of_a_job_delays_no_other_job(job_env: JobEnv, name: str) -> None:
    locked = await job_env.held(DIAMOND, {"b": (hang := held("b"))})
    other = await job_env.held(DIAMOND, {"b": (other_hang := held("b"))})
    async with job_env.locked(f"{locked}{name}"):
        hang.released.set()
        other_hang.released.set()
        await job_env.until(lambda: job_env.state(other) == "done")
        assert job_env.state(locked) == "running"
    await job_env.done(locked, DIAMOND)
    await job_env.done(other, DIAMOND)

    job_env.judge()
