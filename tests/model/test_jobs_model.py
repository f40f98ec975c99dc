"""Jobs in storage against a model of 100 lines, through lost leases, in any order of events.

Each deed is done to both, and compared. Two replicas work on one database. What a replica holds it
may lose, and its answer come late.
"""

import asyncio
import dataclasses
import datetime as dt
import random
from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from progressor.domain.jobs.job import StartNodes, state_before_start
from progressor.domain.processes.admission import Verdict
from progressor.domain.processes.intent import Lost, Outcome, SetTimer
from progressor.domain.processes.task import NodeState, RunningTask, TaskType
from progressor.storage.steps.settlements import LeaseLost, Written
from progressor.storage.steps.settlements import Outcome as SettlementOutcome
from tests.support.models.jobs.graphs import Graph, ancestors, random_graph, specs
from tests.support.models.machine import StoredMachine, machinery
from tests.support.models.modelled_processes import Held
from tests.support.models.strategies import MOSTLY, RARELY, STORES, WHICH
from tests.support.storage.doctor.invariants import Past, broken_invariants
from tests.support.storage.jobs.store import DONE, collecting, job_store
from tests.support.storage.store import (
    BROKEN,
    NAMESPACE,
    NO_TIME,
    UNREACHABLE,
    a_request,
    empty,
    key_of,
    success,
)

UNFINISHED = frozenset({"waiting", "ready", "running"})


@dataclasses.dataclass(slots=True, kw_only=True)
class ModelNode:
    """A node; ``inits`` are the init tasks that were ever seen of it, each once an attempt.

    ``has_constraints``: once ready it waits to be maintained. ``has_follower``: it was started, and
    its process is not removed. ``broken_init``: the init that broke its process, and runs again.
    """

    before: tuple[str, ...]
    has_constraints: bool = False
    has_follower: bool = False
    state: str = "waiting"
    attempt: int = 1
    was_stopped: bool = False
    inits: list[int] = dataclasses.field(default_factory=list)
    broken_init: int | None = None


@dataclasses.dataclass(slots=True, kw_only=True)
class ModelJob:
    """A job. ``joins`` are the join tasks that its leader has had."""

    led_by: str
    state: str = "running"
    nodes: dict[str, ModelNode] = dataclasses.field(default_factory=dict)
    joins: list[int] = dataclasses.field(default_factory=list)

    @property
    def graph(self) -> Graph:
        return {name: node.before for name, node in self.nodes.items()}

    @property
    def states(self) -> dict[str, str]:
        return {name: node.state for name, node in self.nodes.items()}

    def named(self, *states: str) -> list[str]:
        return [name for name, node in self.nodes.items() if node.state in states]

    @property
    def has_come_to_its_end(self) -> bool:
        return not self.named(*UNFINISHED)

    def add(self, graph: Graph, constrained: Collection[str] = ()) -> None:
        for name, before in graph.items():
            node = ModelNode(before=tuple(before), has_constraints=name in constrained)
            self.nodes[name] = node
        self._move()

    def maintain(self) -> None:
        for name in self.named("ready"):
            node = self.nodes[name]
            # One that was stopped begins again by this; one that has failed, by the retry.
            node.attempt += node.was_stopped
            node.was_stopped = False
            node.state, node.has_follower = "running", True

    def ends(self, name: str, state: str) -> None:
        """Let a running node end, and others move because of it."""
        node = self.nodes[name]
        assert node.state == "running", f"{name} is {node.state}, and ends as {state}"
        node.state = state
        self._move()

    def end(self, state: str) -> None:
        """End the job: what has not begun is cancelled, what runs is yet to be stopped."""
        self.state = state
        for name in self.named("waiting", "ready"):
            self.nodes[name].state = "cancelled"

    def stop(self, names: Iterable[str]) -> None:
        for name in names:
            self.nodes[name].state, self.nodes[name].broken_init = "cancelled", None

    def restart_nodes(self, name: str) -> None:
        """Let a node run again whose follower was brought back; what it had skipped waits."""
        node = self.nodes[name]
        node.state, node.attempt, self.state = "running", node.attempt + 1, "running"
        node.broken_init = None
        self._move()

    def retry(self) -> None:
        """Go on with a failed job from the nodes that failed, or were stopped."""
        self.state = "running"
        for node in self.nodes.values():
            if node.has_constraints and node.state in {"failed", "cancelled"}:
                node.was_stopped = node.state == "cancelled" and node.has_follower
                node.attempt += node.state == "failed"
                node.state = "waiting"
            elif node.state == "failed" or (node.state == "cancelled" and node.has_follower):
                node.state, node.attempt = "running", node.attempt + 1
            elif node.state == "cancelled":
                node.state = "waiting"
        self._move()

    def _move(self) -> None:
        """Have every node that has not begun be in the state that the others make it."""
        if self.state != "running":
            return
        states = self.states
        for name, node in self.nodes.items():
            if node.state not in {"waiting", "skipped"}:
                continue
            state = state_before_start(
                [NodeState(states[each]) for each in node.before],
                [NodeState(states[each]) for each in ancestors(self.graph, name)],
            )
            is_started = state is NodeState.READY and not node.has_constraints
            node.state = "running" if is_started else state.value
            node.has_follower = node.has_follower or node.state == "running"


T = TypeVar("T")

GOES_ON = success(SetTimer(after=NO_TIME))
"""The answer of a follower that is not done yet, and runs on at once."""

OUTCOMES: dict[str, Outcome] = {
    "done": DONE, "breaks": BROKEN, "retries": UNREACHABLE, "goes on": GOES_ON,
}  # fmt: skip
REVIVING = frozenset({TaskType.TIMEOUT, TaskType.REPAIR})
"""What may be carried on for a process in error: a repair, or a timer that is run again."""

ATTEMPTS_MAX = 3
BACKOFF = dt.timedelta(seconds=2)
"""Longer than a retry waits."""

ROUNDS_MAX = 200
CONSTRAINED = 0.15
"""Share of the nodes that have constraints."""


GRAPHS = st.integers(0, 1000)
WORDS = st.sampled_from([*OUTCOMES, *["done"] * 8])


class JobsMachine(StoredMachine):
    """Jobs at work in two replicas; whatever the tables say of them must be the model's."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = self.machinery.clock
        self.stores = [job_store(store) for store in self.machinery.stores]
        self.jobs: dict[str, ModelJob] = {}
        self.held: dict[int, Held] = {}
        self.stale: list[Held] = []
        self.past = Past()
        self.idle: list[tuple[str, str]] = []
        self._made = 0
        empty(self.machinery.observer)

    # What clients and leaders do.

    @rule(seed=GRAPHS, store=STORES)
    def submit(self, seed: int, store: int) -> None:
        self.submit_graph(random_graph(random.Random(seed), 8), seed, store)

    def submit_graph(self, graph: Graph, seed: int, store: int) -> None:
        name = self._fresh()
        self.jobs[name] = job = ModelJob(led_by="engine")
        constrained = _constrained(graph, seed)
        job.add(graph, constrained)
        self.do(self.stores[store].submit(key_of(name), specs(graph, constrained)))
        self.compare()

    @rule(seed=GRAPHS, store=STORES)
    def lead(self, seed: int, store: int) -> None:
        """Start a process, whose processor makes it the leader of a job in its first step."""
        name, graph = self._fresh(), random_graph(random.Random(seed), 6)
        self.jobs[name] = job = ModelJob(led_by="processor")
        job.add(graph)
        at = self.stores[store]
        init = self.do(at.store.start(key_of(name)))
        self.do(at.settled(init, success(StartNodes(nodes=specs(graph)))))
        self.compare()

    @rule(which=WHICH, seed=GRAPHS, store=STORES)
    def add(self, which: int, seed: int, store: int) -> None:
        """Call a leader, whose processor adds nodes that depend on those there are."""
        name = self._pick(which, [leader for leader, job in self.jobs.items() if _may_add(job)])
        if name is None or any(held.task.key.process_id == name for held in self.held.values()):
            return
        chosen, job, at = random.Random(seed), self.jobs[name], self.stores[store]
        admission = self.do(at.store.admit(a_request(key_of(name))))
        if admission.running is None:
            # A join stands before it; a claim of the call adds nothing.
            return
        graph = _more(chosen, job, seed)
        constrained = _constrained(graph, seed)
        action = StartNodes(nodes=specs(graph, constrained))
        self.do(at.settled(admission.running, success(action)))
        job.add(graph, constrained)
        self.compare()

    @rule(which=WHICH, store=STORES, really=RARELY)
    def cancel(self, which: int, store: int, really: bool) -> None:
        name = self._pick(which, self._running_jobs())
        if name is None or not really:
            return
        self.do(self.stores[store].control.cancel(key_of(name), "enough"))
        self.jobs[name].end("cancelled")
        self._forget(lambda process_id: process_id == name)
        self.compare()

    @rule(which=WHICH, store=STORES)
    def retry(self, which: int, store: int) -> None:
        name = self._pick(
            which, [leader for leader, job in self.jobs.items() if job.state == "failed"]
        )
        if name is None:
            return
        failed = self.jobs[name].named("failed")
        _, begun = self.do(
            self.stores[store].control.retry(key_of(name), deadline=None, timeout=None)
        )
        assert list(begun) == failed
        self.jobs[name].retry()
        self.compare()

    @rule(which=WHICH, store=STORES, word=st.sampled_from([*OUTCOMES]))
    def repair(self, which: int, store: int, word: str) -> None:
        chosen = self._pick(which, self._broken_followers())
        if chosen is None:
            return
        name, node = chosen
        at = self.stores[store]
        admission = self.do(at.store.admit(a_request(key_of(f"{name}/{node}"), TaskType.REPAIR)))
        if admission.running is None:
            return
        written = self.do(at.settled(admission.running, OUTCOMES[word], continues=True))
        if word in {"done", "goes on"}:
            self._begin_again(name, node)
        if word == "done":
            self.jobs[name].ends(node, "done")
        if written.next is not None:
            self._hold(written.next, store)
        self.compare()

    @rule(which=WHICH, store=STORES)
    def simple_repair(self, which: int, store: int) -> None:
        """Bring a follower in error back without asking its processor; a timer runs again."""
        chosen = self._pick(which, self._broken_followers())
        if chosen is None:
            return
        name, node = chosen
        at = self.stores[store]
        repaired = self.do(at.store.recover(key_of(f"{name}/{node}")))
        if repaired.verdict is Verdict.ACCEPTED and repaired.due is None:
            self._begin_again(name, node)
            # It runs, and has nothing to do.
            self.idle.append((name, node))
        self.compare()

    @rule(which=WHICH, store=STORES)
    def repair_leader(self, which: int, store: int) -> None:
        """Bring a leader in error back without asking its processor."""
        name = self._pick(
            which, [leader for leader, job in self.jobs.items() if job.state == "failed"]
        )
        if name is not None:
            self.do(self.stores[store].store.recover(key_of(name)))
            self.jobs[name].state = "running"
            self.compare()

    @rule(which=WHICH, store=STORES, really=RARELY)
    def remove(self, which: int, store: int, really: bool) -> None:
        """Remove a follower: its node has failed, if it was not at its end."""
        among = [
            (name, node)
            for name, job in self.jobs.items()
            for node, spec in job.nodes.items()
            if spec.has_follower
        ]
        chosen = self._pick(which, among)
        if chosen is None or not really:
            return
        name, node = chosen
        self.do(self.stores[store].store.remove(key_of(f"{name}/{node}")))
        self._forget(lambda process_id: process_id == f"{name}/{node}")
        job = self.jobs[name]
        job.nodes[node].has_follower, job.nodes[node].broken_init = False, None
        if job.nodes[node].state == "running":
            job.ends(node, "failed")
        self.compare()

    @rule(which=WHICH, store=STORES, really=RARELY)
    def remove_leader(self, which: int, store: int, really: bool) -> None:
        """Remove a leader, and with it the job; its followers are stopped after that."""
        name = self._pick(which, list(self.jobs))
        if name is None or not really:
            return
        at = self.stores[store]
        self.do(at.store.remove(key_of(name)))
        self._forget(lambda process_id: process_id == name)
        del self.jobs[name]
        self.do(at.control.stop_orphans())
        self.compare()

    # What workers do.

    @rule(store=STORES)
    def claim(self, store: int) -> None:
        for claimed in self.do(self.stores[store].store.claim_due(limit=100)):
            self._hold(claimed.task, store)

    @rule(which=WHICH, word=WORDS, continues=MOSTLY)
    def settle(self, which: int, word: str, continues: bool) -> None:
        held = self._pick(which, list(self.held.values()))
        if held is None:
            return
        del self.held[held.task.token]
        outcome = self._outcome(held.task, word)
        written = self.do(self.stores[held.store].settle(held.task, outcome, continues=continues))
        assert isinstance(written, Written), "no other replica has had the lease"
        self._apply(held.task, outcome)
        if written.next is not None:
            self._hold(written.next, held.store)
        self.compare()

    @rule(words=st.lists(WORDS, min_size=3, max_size=10), store=STORES)
    def work(self, words: list[str], store: int) -> None:
        """Claim and settle, again and again, as these words say."""
        for word in words:
            self.claim(store)
            if not self.held:
                self.let_time_pass()
            self.settle(0, word, continues=True)

    @rule(words=st.lists(WORDS, min_size=3, max_size=10), store=STORES)
    def work_more(self, words: list[str], store: int) -> None:
        self.work(words, store)

    @rule(which=WHICH, store=STORES)
    def fail(self, which: int, store: int) -> None:
        """Let one node of a job break, and all else of it be done until it has failed."""
        name = self._pick(which, self._running_jobs())
        if name is None:
            return
        word = "breaks"
        for _ in range(ROUNDS_MAX):
            self.let_time_pass()
            self.claim(store)
            of_job = [held for held in self.held if _job_of(self.held[held].task) == name]
            if not of_job:
                return
            self.settle(list(self.held).index(of_job[0]), word, continues=True)
            word = "done"

    @rule(seed=GRAPHS)
    def settle_all(self, seed: int) -> None:
        """Settle all that is held of followers, at the same moment in both replicas."""
        chosen = random.Random(seed)
        words = chosen.choice((["done"], ["done"] * 15 + ["breaks", "goes on"]))
        settled = [
            (self.held.pop(held.task.token), OUTCOMES[chosen.choice(words)])
            for held in list(self.held.values())
            if _node_of(held.task) is not None
        ]

        async def all_at_once() -> None:
            async with asyncio.TaskGroup() as group:
                for held, outcome in settled:
                    at = self.stores[held.store]
                    group.create_task(at.settled(held.task, outcome), name="settle")

        self.do(all_at_once())
        for held, outcome in settled:
            self._apply(held.task, outcome)
        self.compare()

    @rule(which=WHICH)
    def lose(self, which: int) -> None:
        """Let a lease be lost: the replica is silent, and another one collects the task."""
        held = self._pick(which, list(self.held.values()))
        if held is None:
            return
        del self.held[held.task.token]
        self.stale.append(held)
        entry = collecting(held.task, self.clock.now())

        async def collect() -> SettlementOutcome:
            return await self.stores[1 - held.store].store.write(entry)

        written = self.do(collect())
        assert isinstance(written, Written), "no other replica collects"
        self._apply(held.task, Lost())
        self.compare()

    @rule(which=WHICH, word=WORDS)
    def speak_late(self, which: int, word: str) -> None:
        """Let an answer come whose lease was lost: it changes nothing."""
        held = self._pick(which, self.stale)
        if held is None:
            return
        self.stale.remove(held)
        outcome = OUTCOMES[word]
        written = self.do(self.stores[held.store].settle(held.task, outcome))
        assert isinstance(written, LeaseLost), "a lost lease has settled"
        self.compare()

    @rule()
    def let_time_pass(self) -> None:
        self.clock.advance(BACKOFF)
        self.do(self.stores[0].store.gates.promote_due([NAMESPACE.name]))

    @rule(which=WHICH, store=STORES)
    def maintain(self, which: int, store: int) -> None:
        """Have a replica do for a job what no settlement does."""
        name = self._pick(which, list(self.jobs))
        if name is not None:
            self._tend(name, store)
            self.compare()

    def _tend(self, name: str, store: int) -> None:
        self.do(self.stores[store].maintain(key_of(name)))
        job = self.jobs[name]
        if job.state == "running":
            job.maintain()
        else:
            leased = {held.task.key.process_id for held in self.held.values()}
            job.stop(each for each in job.named("running") if f"{name}/{each}" not in leased)

    def teardown(self) -> None:
        """Let everything that there is come to its end, and see that it does, without recovery."""
        for name, node in self.idle:
            self._call_idle(name, node)
        for _ in range(ROUNDS_MAX):
            for name in self.jobs:
                self._tend(name, 0)
            self.let_time_pass()
            self.claim(0)
            if not self.held:
                break
            for token in list(self.held):
                if token in self.held:
                    self.settle(list(self.held).index(token), "done", continues=True)
        for name, job in self.jobs.items():
            assert job.has_come_to_its_end, f"{name} is stuck: {job.states}"
            assert job.state != "running" or job.led_by == "processor", f"{name}: {job.states}"
        assert self.do(self.stores[0].recovered()) == []
        assert broken_invariants(self.machinery.observer, at_rest=True, now=self.clock.now()) == {}

    def _call_idle(self, name: str, node: str) -> None:
        job = self.jobs.get(name)
        if job is not None and job.nodes[node].state == "running":
            admission = self.do(self.stores[0].store.admit(a_request(key_of(f"{name}/{node}"))))
            if admission.running is not None:
                self._hold(admission.running, 0)

    # What must be the same.

    def compare(self) -> None:
        for name, job in self.jobs.items():
            assert self.do(self.stores[0].states(key_of(name))) == job.states, name
            assert self.do(self.stores[0].job_state(key_of(name))) == job.state, name
            told = self.do(self.stores[0].attempts(key_of(name)))
            begun = {
                node: spec.attempt for node, spec in job.nodes.items() if spec.state != "ready"
            }
            assert begun.items() <= told.items(), name
        assert broken_invariants(self.machinery.observer) == {}
        assert self.past.look(self.machinery.observer) == []

    # How the model is informed.

    def _fresh(self) -> str:
        self._made += 1
        return f"job{self._made}"

    def _hold(self, task: RunningTask, store: int) -> None:
        name, node = _job_of(task), _node_of(task)
        job = self.jobs.get(name)
        if job is None:
            pass
        elif node is None:
            if task.task_type is TaskType.JOIN and task.attempt == 1:
                assert job.has_come_to_its_end, "a leader got a join before its nodes had ended"
                assert task.task_id not in job.joins
                job.joins.append(task.task_id)
        else:
            of_node = job.nodes[node]
            may_run = {"running", "failed"} if task.task_type in REVIVING else {"running"}
            assert of_node.state in may_run, f"{name}/{node} is begun, and {of_node.state}"
            undone = [each for each in of_node.before if job.nodes[each].state != "done"]
            assert not undone, f"{name}/{node} is begun before {undone}"
            if task.task_type is TaskType.INIT and task.task_id not in of_node.inits:
                assert of_node.broken_init is None, f"the init of {name}/{node} does not run again"
                of_node.inits.append(task.task_id)
                assert len(of_node.inits) <= of_node.attempt, f"{name}/{node} was started twice"
            of_node.broken_init = None
        self.held[task.token] = Held(task, store)

    def _outcome(self, task: RunningTask, word: str) -> Outcome:
        """Return what a word says, and of the engine's join what that decides."""
        if _node_of(task) is not None or task.task_type is not TaskType.JOIN:
            return OUTCOMES[word] if _node_of(task) is not None else success()
        job = self.jobs[_job_of(task)]
        is_done = all(state == "done" for state in job.states.values())
        return DONE if is_done else BROKEN

    def _apply(self, task: RunningTask, outcome: Outcome) -> None:
        """Tell the model what a settlement has done."""
        name, node = _job_of(task), _node_of(task)
        job = self.jobs.get(name)
        if job is None:
            return
        if task.task_type in REVIVING and node and job.nodes[node].state == "failed":
            # It brings its process back, or leaves it broken.
            if outcome is not DONE and outcome is not GOES_ON:
                return
            self._begin_again(name, node)
        is_spent = task.attempt >= ATTEMPTS_MAX and (
            outcome == UNREACHABLE or isinstance(outcome, Lost)
        )
        if node is None:
            if outcome is DONE or outcome is BROKEN or is_spent:
                job.end("done" if outcome is DONE else "failed")
        elif outcome is DONE or outcome is BROKEN or is_spent:
            job.nodes[node].broken_init = _broken_init(task, outcome)
            job.ends(node, "done" if outcome is DONE else "failed")
        elif job.state != "running":
            job.stop([node])

    def _begin_again(self, name: str, node: str) -> None:
        """A join that is in hand is taken back: its job goes on."""
        self.jobs[name].restart_nodes(node)
        self._forget(lambda process_id: process_id == name)

    def _forget(self, ended: Callable[[str], bool]) -> None:
        """Take what was in hand of processes that were ended from outside for lost."""
        for token, held in list(self.held.items()):
            if ended(held.task.key.process_id):
                self.stale.append(self.held.pop(token))

    def _broken_followers(self) -> list[tuple[str, str]]:
        return [
            (name, node)
            for name, job in self.jobs.items()
            if job.state in {"running", "failed"}
            for node, spec in job.nodes.items()
            if spec.state == "failed" and spec.has_follower
        ]

    def _running_jobs(self) -> list[str]:
        return [name for name, job in self.jobs.items() if job.state == "running"]

    @staticmethod
    def _pick(which: int, among: list[T]) -> T | None:
        return among[which % len(among)] if among else None


def _job_of(task: RunningTask) -> str:
    return task.key.process_id.partition("/")[0]


def _node_of(task: RunningTask) -> str | None:
    return task.key.process_id.partition("/")[2] or None


def _broken_init(task: RunningTask, outcome: Outcome) -> int | None:
    """Return the task that has broken its process, if it is an init."""
    return task.task_id if task.task_type is TaskType.INIT and outcome is not DONE else None


def _may_add(job: ModelJob) -> bool:
    return job.led_by == "processor" and job.state == "running"


def _constrained(graph: Graph, seed: int) -> list[str]:
    chosen = random.Random(seed)
    return [name for name in graph if chosen.random() < CONSTRAINED]


def _more(chosen: random.Random, job: ModelJob, seed: int) -> Graph:
    """Return new nodes, which depend on each other and on those that the job has."""
    fresh = random_graph(chosen, 3)
    old = list(job.nodes)
    return {
        f"{name}.{seed}.{len(old)}": (
            *(f"{each}.{seed}.{len(old)}" for each in before),
            *chosen.sample(old, chosen.randint(0, min(2, len(old)))),
        )
        for name, before in fresh.items()
    }


def test_jobs_do_what_their_model_does(own_database: str) -> None:
    JobsMachine.check(own_database, steps=40)


@pytest.mark.matrix
@pytest.mark.parametrize("seed", range(6))
def test_a_graph_of_up_to_200_nodes_whatever_becomes_of_them(own_database: str, seed: int) -> None:
    chosen = random.Random(seed)
    with machinery(own_database) as opened:
        jobs = JobsMachine.over(opened)()
        jobs.submit_graph(random_graph(random.Random(seed), 200), seed, 0)
        for _ in range(60):
            jobs.claim(chosen.randrange(2))
            for _ in range(chosen.randrange(6)):
                which = chosen.randrange(1000)
                word = chosen.choices([*OUTCOMES], [60, 1, 3, 3])[0]
                if chosen.random() < 0.1:
                    jobs.lose(which)
                elif chosen.random() < 0.1:
                    jobs.speak_late(which, word)
                else:
                    jobs.settle(which, word, continues=chosen.random() < 0.5)
            if chosen.random() < 0.2:
                jobs.settle_all(chosen.randrange(1000))
            jobs.let_time_pass()
        jobs.teardown()
