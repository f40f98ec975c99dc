"""What the engine does for jobs, with a fault in the middle: see `faults_requests`.

Whatever happens, each node's follower is settled once (each leaves one event), and the leader is
told once that all of them have ended.
"""

import contextlib
import dataclasses
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

import psycopg

from progressor import errors, job_errors
from progressor.sdk import Constraints, Graph
from progressor.v1 import nodes_pb2
from progressor.v1.processor_service_pb2 import Complete
from tests.support.engine.replica import answering, broken, response, timer
from tests.support.faults.faults import Make
from tests.support.faults.ground import ATTEMPT_SECONDS, Ground, insisted
from tests.support.processor.scripted import Hang, Step

_SETTLE = '"settle_job_tasks"('
_MAINTAIN = '"maintain_job"('
_SOON = 0.3
_NODES = """
    SELECT name, state::text FROM progressor.job_nodes
    WHERE namespace = %s AND process_id = %s ORDER BY ordinal"""
_JOINS = """
    SELECT status::text, count(*) FROM progressor.tasks
    WHERE namespace = %s AND process_id = %s AND task_type = 'join' GROUP BY 1"""

Pairs = Mapping[str, Sequence[str]]
"""Names of nodes, each with the names of those that it comes after."""

PAIR: Pairs = {"a": (), "b": ("a",)}
DIAMOND: Pairs = {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")}


@dataclasses.dataclass(frozen=True, slots=True)
class JobGround:
    """A ground on which there are jobs."""

    ground: Ground
    conninfo: str

    def graph(self, pairs: Pairs, **options: Constraints) -> Graph:
        """Return a graph; of each node, ``options`` has the constraints by its name."""
        made = Graph()
        for name, after in pairs.items():
            if name in options:
                made.node(name, b"1", after=after, constraints=options[name])
            else:
                made.node(name, b"1", after=after)
        return made

    def script(self, job_id: str, pairs: Pairs, **steps: Step) -> None:
        """Have every node be done at once, but for those that have a first step of their own."""
        for name in pairs:
            first = [steps[name]] if name in steps else []
            self.ground.env.processor.on_process(f"{job_id}/{name}", *first, done(name))

    async def submit(self, job_id: str, graph: Graph, *, deadline: float | None = None) -> None:
        """Submit a job under the key "k" until it is accepted."""
        await insisted(
            lambda: self.ground.client.jobs.submit(
                job_id, graph, deadline=deadline, idempotency_key="k", timeout=ATTEMPT_SECONDS
            )
        )

    async def lead(self, job_id: str, pairs: Pairs, *then: Step) -> None:
        """Start a leader that has a processor of its own, and steps for what comes after."""
        added = nodes_pb2.StartNodes(
            nodes=[nodes_pb2.NodeSpec(name=name, predecessors=pairs[name]) for name in pairs]
        )
        self.ground.env.processor.on_process(job_id, answering(start_nodes=added), *then)
        await insisted(
            lambda: self.ground.client.start(job_id, idempotency_key="k", timeout=ATTEMPT_SECONDS)
        )

    async def held(self, pairs: Pairs, name: str, *then: Step) -> tuple[str, Hang]:
        """Submit a job one of whose nodes has a step in hand; return what lets that end."""
        job_id, hang = self.ground.fresh(), held(name)
        self.script(job_id, pairs, **{name: hang})
        if then:
            self.ground.env.processor.on_process(f"{job_id}/{name}", hang, *then)
        await self.submit(job_id, self.graph(pairs))
        await self.ground.env.asked(f"{job_id}/{name}")
        return job_id, hang

    def state(self, job_id: str) -> str | None:
        """Return the state of a job; None: there is none."""
        row = self.ground.observer.execute(
            "SELECT state::text FROM progressor.jobs WHERE namespace = %s AND process_id = %s",
            [self.ground.env.namespace, job_id],
        ).fetchone()
        return None if row is None else row[0]

    def nodes(self, job_id: str) -> dict[str, str]:
        """Return the states of a job's nodes."""
        which = [self.ground.env.namespace, job_id]
        return dict(self.ground.observer.execute(_NODES, which).fetchall())

    def joins(self, job_id: str) -> dict[str, int]:
        """Return how many joins of a job have ended, by how."""
        which = [self.ground.env.namespace, job_id]
        return dict(self.ground.observer.execute(_JOINS, which).fetchall())

    async def at_rest(self) -> None:
        """Wait until nothing is in hand or due, and nothing is left to do for any job."""
        await self.ground.at_rest()
        upkeep_due = "SELECT FROM progressor.jobs WHERE upkeep_due_at IS NOT NULL"
        await self.ground.until(lambda: not self.ground.observer.execute(upkeep_due).fetchall())

    async def ended(self, job_id: str, state: str, **nodes: str) -> None:
        """Wait until a job has ended as it should; then its nodes have, and each did so once."""
        await self.ground.until(lambda: self.state(job_id) not in {"running", None})
        await self.ground.at_rest()
        assert self.state(job_id) == state
        assert self.nodes(job_id) == nodes
        for name, each in nodes.items():
            if each == "done":
                assert self.ground.events(f"{job_id}/{name}") == [name.encode()]

    async def done(self, job_id: str, pairs: Pairs) -> None:
        """Wait until a job is done, of which its leader was told once."""
        await self.ended(job_id, "done", **dict.fromkeys(pairs, "done"))
        assert self.joins(job_id) == {"finished": 1}

    @contextlib.asynccontextmanager
    async def locked(self, process_id: str) -> AsyncIterator[None]:
        """Lock the row of a process for as long as the context lasts."""
        async with await psycopg.AsyncConnection.connect(self.conninfo) as connection:
            await connection.execute(
                "SELECT FROM progressor.processes WHERE namespace = %s AND process_id = %s"
                " FOR UPDATE",
                [self.ground.env.namespace, process_id],
            )
            yield
            await connection.rollback()


def done(name: str) -> Step:
    """Return the step that is done with a node, and leaves one event."""
    return answering(name.encode(), complete=Complete(result=name.encode()))


def held(name: str) -> Hang:
    """Return the same step, once it is released."""
    return Hang(response=response(name.encode(), complete=Complete(result=name.encode())))


Play = Callable[[JobGround, Make], Awaitable[None]]


async def submit(on: JobGround, make: Make) -> None:
    """Submit a job: accepted once, however often it was asked for."""
    job_id = on.ground.fresh()
    on.script(job_id, DIAMOND)
    async with on.ground.under(make, '"admit_jobs"('):
        await on.submit(job_id, on.graph(DIAMOND))
    await on.done(job_id, DIAMOND)


async def add(on: JobGround, make: Make) -> None:
    """Settle the step that adds the nodes."""
    job_id = on.ground.fresh()
    on.script(job_id, DIAMOND)
    async with on.ground.under(make, _SETTLE):
        await on.submit(job_id, on.graph(DIAMOND))
    await on.done(job_id, DIAMOND)


async def node(on: JobGround, make: Make) -> None:
    """Settle the end of a node: what comes after it is started, once."""
    job_id, hang = await on.held(DIAMOND, "a")
    async with on.ground.under(make, _SETTLE):
        hang.released.set()
    await on.done(job_id, DIAMOND)


async def last_node(on: JobGround, make: Make) -> None:
    """Settle the end of the last node: the leader is notified once."""
    job_id, hang = await on.held(DIAMOND, "d")
    async with on.ground.under(make, _SETTLE):
        hang.released.set()
    await on.done(job_id, DIAMOND)


async def two_nodes(on: JobGround, make: Make) -> None:
    """Settle the ends of two nodes at once that one other waits for."""
    job_id, hangs = on.ground.fresh(), [held("b"), held("c")]
    on.script(job_id, DIAMOND, b=hangs[0], c=hangs[1])
    await on.submit(job_id, on.graph(DIAMOND))
    for name in "bc":
        await on.ground.env.asked(f"{job_id}/{name}")
    async with on.ground.under(make, _SETTLE):
        for hang in hangs:
            hang.released.set()
    await on.done(job_id, DIAMOND)


async def failing_node(on: JobGround, make: Make) -> None:
    """Settle the failure of a node: what comes after it is skipped, and the job fails."""
    job_id, hang = on.ground.fresh(), Hang(response=broken().response)
    on.script(job_id, DIAMOND, b=hang)
    await on.submit(job_id, on.graph(DIAMOND))
    await on.ground.env.asked(f"{job_id}/b")
    # Asked again it would be done, so it is not: its replica is not lost, but slow at most.
    on.ground.env.processor.on_process(f"{job_id}/b", broken())
    async with on.ground.under(make, _SETTLE):
        hang.released.set()
    await on.ended(job_id, "failed", a="done", b="failed", c="done", d="skipped")
    assert on.joins(job_id) == {"error": 1}


async def node_with_a_timer(on: JobGround, make: Make) -> None:
    """Settle the first step of a node that has another one."""
    job_id = on.ground.fresh()
    hang = Hang(response=response(set_timer=timer()))
    on.script(job_id, PAIR, a=hang)
    await on.submit(job_id, on.graph(PAIR))
    await on.ground.env.asked(f"{job_id}/a")
    async with on.ground.under(make, _SETTLE):
        hang.released.set()
    await on.done(job_id, PAIR)


async def lost_node(on: JobGround, make: Make) -> None:
    """Hand on the lost lease of a node."""
    job_id, hang = await on.held(PAIR, "a")
    async with on.ground.under(make, _SETTLE):
        on.ground.observer.execute(
            "UPDATE progressor.running SET replica_id = 0 WHERE namespace = %s AND process_id = %s",
            [on.ground.env.namespace, f"{job_id}/a"],
        )
        await on.ground.env.asked(f"{job_id}/a", 2)
    hang.released.set()
    await on.done(job_id, PAIR)


async def own_leader(on: JobGround, make: Make) -> None:
    """Settle a step that adds nodes to the job of the processor's own leader."""
    job_id = on.ground.fresh()
    on.script(job_id, PAIR)
    async with on.ground.under(make, _SETTLE):
        await on.lead(job_id, PAIR, answering(b"end", complete=Complete()))
    await on.done(job_id, PAIR)
    assert on.ground.events(job_id) == [b"end"]


async def join(on: JobGround, make: Make) -> None:
    """Settle the join of the processor's own leader."""
    job_id, hang = on.ground.fresh(), held("end")
    on.script(job_id, PAIR)
    await on.lead(job_id, PAIR, hang, done("end"))
    await on.ground.env.asked(job_id, 2)
    async with on.ground.under(make, _SETTLE):
        hang.released.set()
    await on.done(job_id, PAIR)
    assert on.ground.events(job_id) == [b"end"]


async def join_that_adds(on: JobGround, make: Make) -> None:
    """Settle a join that adds nodes: the leader is notified once more."""
    job_id = on.ground.fresh()
    added = nodes_pb2.StartNodes(nodes=[nodes_pb2.NodeSpec(name="c", predecessors=["b"])])
    adding, more = Hang(response=response(start_nodes=added)), held("c")
    on.script(job_id, {**PAIR, "c": ("b",)}, c=more)
    await on.lead(job_id, PAIR, adding)
    await on.ground.env.asked(job_id, 2)
    # One whose lease is lost meanwhile adds them when it is asked again.
    on.ground.env.processor.on_process(job_id, answering(start_nodes=added))
    async with on.ground.under(make, _SETTLE):
        adding.released.set()
    await on.ground.env.asked(f"{job_id}/c")
    on.ground.env.processor.on_process(job_id, done("end"))
    more.released.set()
    await on.ended(job_id, "done", **dict.fromkeys("abc", "done"))
    assert on.joins(job_id) == {"finished": 2}


async def cancel(on: JobGround, make: Make) -> None:
    """Cancel a job: what has not begun never does; a step in hand goes to its end."""
    job_id, hang = await on.held(DIAMOND, "b")

    async def attempt() -> None:
        with contextlib.suppress(job_errors.JobEndedError):
            await on.ground.client.jobs.cancel(job_id, timeout=ATTEMPT_SECONDS)

    async with on.ground.under(make, '"cancel_job"('):
        await insisted(attempt)
    hang.released.set()
    await on.ground.until(lambda: on.nodes(job_id)["b"] != "running")
    await on.ended(job_id, "cancelled", a="done", b="done", c="done", d="cancelled")
    assert on.joins(job_id) == {}


async def stop(on: JobGround, make: Make) -> None:
    """Stop a follower that has no step in hand when its job is cancelled."""
    job_id = on.ground.fresh()
    on.script(job_id, PAIR, a=answering(b"waits", set_timer=timer(3600)))
    await on.submit(job_id, on.graph(PAIR))
    await on.ground.until(lambda: on.ground.events(f"{job_id}/a") == [b"waits"])
    async with on.ground.under(make, _MAINTAIN):
        await insisted(
            functools.partial(on.ground.client.jobs.cancel, job_id, timeout=ATTEMPT_SECONDS)
        )
    await on.ground.until(lambda: on.nodes(job_id)["a"] != "running")
    await on.ended(job_id, "cancelled", a="cancelled", b="cancelled")
    assert on.ground.status(f"{job_id}/a") == "error"


async def retry(on: JobGround, make: Make) -> None:
    """Retry a failed job: what failed begins again, once."""
    job_id = on.ground.fresh()
    on.script(job_id, DIAMOND, b=broken())
    await on.submit(job_id, on.graph(DIAMOND))
    await on.ended(job_id, "failed", a="done", b="failed", c="done", d="skipped")

    async def attempt() -> None:
        with contextlib.suppress(job_errors.JobNotFailedError):
            await on.ground.client.jobs.retry(job_id, timeout=ATTEMPT_SECONDS)

    async with on.ground.under(make, '"retry_job"('):
        await insisted(attempt)
    await on.ended(job_id, "done", **dict.fromkeys(DIAMOND, "done"))
    assert on.joins(job_id) == {"error": 1, "finished": 1}


async def gated_node(on: JobGround, make: Make) -> None:
    """Start a node that has constraints."""
    job_id = on.ground.fresh()
    on.script(job_id, PAIR)
    gate = Constraints(gates={f"gate of {job_id}": 1})
    async with on.ground.under(make, _MAINTAIN):
        await on.submit(job_id, on.graph(PAIR, b=gate))
    await on.done(job_id, PAIR)


async def deadline(on: JobGround, make: Make) -> None:
    """Fail a job whose deadline has passed, with a node that waits for a timer."""
    job_id = on.ground.fresh()
    on.script(job_id, PAIR, a=answering(b"waits", set_timer=timer(3600)))
    async with on.ground.under(make, '"fail_overdue_jobs"('):
        await on.submit(job_id, on.graph(PAIR), deadline=_SOON)
    await on.ground.until(lambda: on.nodes(job_id)["a"] not in {"running", "ready"})
    await on.ground.until(lambda: on.state(job_id) == "failed")
    await on.ended(job_id, "failed", a="cancelled", b="cancelled")
    assert on.joins(job_id) == {}


async def recovery(on: JobGround, make: Make) -> None:
    """Find a node whose process is gone, as it never should be."""
    job_id, hang = await on.held(PAIR, "a")
    which = [on.ground.env.namespace, f"{job_id}/a"]
    async with on.ground.under(make, '"recover_jobs"('):
        with on.ground.observer.transaction():
            for table in ("running", "schedule", "tasks", "processes"):
                on.ground.observer.execute(
                    f"DELETE FROM progressor.{table} WHERE namespace = %s"  # noqa: S608  ours
                    " AND process_id = %s",
                    which,
                )
            on.ground.observer.execute(
                "UPDATE progressor.jobs SET updated_at = now() - interval '1 hour'"
                " WHERE namespace = %s AND process_id = %s",
                [on.ground.env.namespace, job_id],
            )
            on.ground.observer.execute("UPDATE progressor.upkeep_rounds SET due_at = '-infinity'")
    # A round that was not answered is done again when the next one is due.
    on.ground.observer.execute("UPDATE progressor.upkeep_rounds SET due_at = '-infinity'")
    await on.ended(job_id, "failed", a="failed", b="skipped")
    hang.released.set()
    assert on.joins(job_id) == {"error": 1}


async def orphan(on: JobGround, make: Make) -> None:
    """Stop a follower whose leader was removed."""
    job_id = on.ground.fresh()
    on.script(job_id, PAIR, a=answering(b"waits", set_timer=timer(3600)))
    await on.submit(job_id, on.graph(PAIR))
    await on.ground.until(lambda: on.ground.events(f"{job_id}/a") == [b"waits"])
    async with on.ground.under(make, '"stop_orphans"('):
        await insisted(functools.partial(on.ground.client.remove, job_id, timeout=ATTEMPT_SECONDS))
    await on.ground.until(lambda: on.ground.status(f"{job_id}/a") == "error")

    assert on.state(job_id) is None


async def removal(on: JobGround, make: Make) -> None:
    """Remove a leader: the follower that has a step in hand ends that, and is stopped."""
    job_id, hang = await on.held(PAIR, "a", done("a"))

    async def attempt() -> None:
        with contextlib.suppress(errors.ProcessNotFoundError):
            await on.ground.client.remove(job_id, timeout=ATTEMPT_SECONDS)

    async with on.ground.under(make, '"remove_process"('):
        await insisted(attempt)
    hang.released.set()
    await on.ground.until(lambda: on.ground.status(f"{job_id}/a") in {"error", "finished"})

    assert on.nodes(job_id) == {}
    assert len(on.ground.events(f"{job_id}/a")) <= 1


OPERATIONS: tuple[Play, ...] = (
    submit,
    add,
    node,
    last_node,
    two_nodes,
    failing_node,
    node_with_a_timer,
    lost_node,
    own_leader,
    join,
    join_that_adds,
    cancel,
    stop,
    retry,
    gated_node,
    deadline,
    recovery,
    orphan,
    removal,
)
