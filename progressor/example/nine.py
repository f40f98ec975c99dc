"""Nine tasks that depend on each other, led by the engine or by a processor.

    1 ──a──► 4 ──h──► 9        After 1, none is ready: 4 and 7 also wait for others.
    1 ──b──► 7                 After 2: 4, 5 and 6. After 3 and 5: none.
    2 ──c──► 4                 After 4: 7, while 9 waits for 6. After 6: 8 and 9.
    2 ──d──► 5 ──i──► 8        If 4 fails, 7 and 9 are skipped, and 8 runs after 6.
    2 ──e──► 6 ──j──► 8
    2 ──f──► 7 ◄──g── 4
    6 ──k──► 9                 3 stands alone.

This is the example in the description of the Job Center, an ancestor of progressor's jobs. It gives
the order in which the tasks end, and the tasks that are ready after each. It does not say where *f*
leads, to 7, 8 or 9; here it leads to 7. The scenario plays both worked examples of the text, a
success and a failure, with both kinds of leaders. After each task, the tasks that became ready are
printed and compared with the text.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from progressor.example.scenario import Scenario, ScenarioError
from progressor.sdk import Fail, Graph, JobState, JobView, NodeState, Processor, Step

EDGES: Mapping[str, tuple[str, str]] = {
    "a": ("1", "4"),
    "b": ("1", "7"),
    "c": ("2", "4"),
    "d": ("2", "5"),
    "e": ("2", "6"),
    "f": ("2", "7"),
    "g": ("4", "7"),
    "h": ("4", "9"),
    "i": ("5", "8"),
    "j": ("6", "8"),
    "k": ("6", "9"),
}

SUCCESS = (
    ("1", ()),
    ("2", ("4", "5", "6")),
    ("3", ()),
    ("5", ()),
    ("4", ("7",)),
    ("6", ("8", "9")),
    ("8", ()),
    ("9", ()),
    ("7", ()),
)
"""The tasks in the order in which they end, and which are ready after each."""

FAILURE = (
    ("1", ()),
    ("2", ("4", "5", "6")),
    ("3", ()),
    ("5", ()),
    ("4", ()),
    ("6", ("8",)),
    ("8", ()),
)
"""The same if 4 fails."""

FAILING = "4"
SKIPPED = ("7", "9")


class Lead(msgspec.Struct, frozen=True, tag="lead"):
    """The args of a leader: it starts the nine tasks of a run."""

    run: str


class Work(msgspec.Struct, frozen=True, tag="work"):
    """The args of one of the nine tasks."""

    run: str
    task: str


def nine_tasks(run: str) -> Graph:
    """Return the graph."""
    graph = Graph()
    for number in range(1, 10):
        task = str(number)
        before = [graph[first] for first, then in EDGES.values() if then == task]
        graph.node(task, Work(run, task), after=before)
    return graph


class Turns:
    """Ends the tasks of a run in a chosen order: each waits for its outcome."""

    def __init__(self) -> None:
        self._outcomes: dict[tuple[str, str], asyncio.Future[bool]] = {}

    def end(self, run: str, task: str, *, succeeds: bool) -> None:
        """End a task."""
        self._future(run, task).set_result(succeeds)

    async def succeeds(self, run: str, task: str) -> bool:
        """Wait for the outcome of a task."""
        # If the engine gives the step up, the next attempt waits for the same outcome.
        return await asyncio.shield(self._future(run, task))

    def _future(self, run: str, task: str) -> "asyncio.Future[bool]":
        loop = asyncio.get_running_loop()
        return self._outcomes.setdefault((run, task), loop.create_future())


def tasks(turns: Turns) -> Processor[Any]:
    """Return the processor of the nine tasks and of their leader."""
    processor = Processor("nine-tasks")

    @processor.init
    async def begin(step: Step[Any]) -> None:
        match step.args_as(Lead | Work):
            case Lead(run=run):
                step.start_nodes(nine_tasks(run))
            case work:
                if not await turns.succeeds(work.run, work.task):
                    raise Fail(f"task {work.task} was told to fail", reason="TOLD_SO")
                step.complete({"task": work.task})

    @processor.join
    async def end(step: Step[Any]) -> None:
        undone = [it.name for it in step.nodes.values() if not it.is_done]
        if undone:
            raise Fail(f"not done: {', '.join(undone)}")
        step.complete({"done": list(step.nodes)})

    return processor


_STYLES: Mapping[NodeState, str] = {
    NodeState.DONE: "green",
    NodeState.FAILED: "red",
    NodeState.SKIPPED: "yellow",
}

_READY = frozenset({NodeState.READY, NodeState.RUNNING})
_ENDED = frozenset(it for it in NodeState if it.has_ended)

Steps = tuple[tuple[str, tuple[str, ...]], ...]


class NineScenario(Scenario):
    """Four jobs of nine tasks, printed as they run."""

    goal = "run the jobs of nine tasks"
    commands = ("job list -n {namespace}", "job get -n {namespace} {id}")

    def __init__(self, *, console: Console, run: str) -> None:
        super().__init__(console=console, run=run)
        self._turns = Turns()
        self.processor = tasks(self._turns)
        self._states: dict[str, NodeState] = {}

    async def _play(self) -> tuple[str, ...]:
        jobs: list[str] = []
        for led_by in ("the engine", "its own processor"):
            for steps in (SUCCESS, FAILURE):
                fails = steps is FAILURE
                jobs.append(f"nine-{self._run}-{len(jobs) + 1}")
                self._say(
                    f"a job of nine tasks and {len(EDGES)} edges, led by {led_by}"
                    + (f"; {FAILING} will fail" if fails else ""),
                    style="bold",
                )
                await self._submit(jobs[-1], led_by)
                async with contextlib.aclosing(self._client.jobs.watch(jobs[-1])) as changes:
                    await self._walk(jobs[-1], steps, changes)
                await self._check_end(jobs[-1], fails=fails)
        return tuple(jobs)

    async def _submit(self, job_id: str, led_by: str) -> None:
        """Submit the graph, or start a process whose first step starts the nodes."""
        if led_by == "the engine":
            await self._client.jobs.submit(job_id, nine_tasks(job_id), idempotency_key="submit")
        else:
            await self._client.start(job_id, Lead(job_id), idempotency_key="start")

    async def _walk(self, job_id: str, steps: Steps, changes: AsyncIterator[JobView]) -> None:
        """End the tasks in order, and compare the ready tasks after each."""
        self._states = {}
        ready = await self._until(changes, {"1", "2", "3"})
        self._expect("begin", ready, ("1", "2", "3"))
        self._say(f"  ready at the beginning: {_listed(ready)}")
        for task, then in steps:
            fails = steps is FAILURE and task == FAILING
            self._turns.end(job_id, task, succeeds=not fails)
            ready = await self._until(changes, {task})
            self._expect(f"continue after {task}", ready, then)
            state = self._states[task]
            text = Text.assemble(
                f"  {task} is ", (f"{state:<6}", _STYLES[state]), f" ready now: {_listed(ready)}"
            )
            if fails:
                skipped = [it for it, its in self._states.items() if its is NodeState.SKIPPED]
                self._expect(f"skip what depends on {task}", skipped, SKIPPED)
                text.append(f"; skipped: {_listed(skipped)}", "yellow")
            self._say(text)

    async def _until(self, changes: AsyncIterator[JobView], tasks: set[str]) -> list[str]:
        """Watch until these tasks are ready, or have ended if they were; return the new ready ones.

        A task becomes ready in the transaction that ends its predecessor, so in the same message.
        """
        ready: list[str] = []
        waited_for = _ENDED if tasks <= self._states.keys() else _READY
        async for view in changes:
            for node in view.nodes:
                if node.state in _READY and self._states.get(node.name) not in _READY:
                    ready.append(node.name)
                self._states[node.name] = node.state
            if all(self._states.get(it) in waited_for for it in tasks):
                return sorted(ready)
        raise ScenarioError("watch the job", f"it ended before {_listed(sorted(tasks))}")

    async def _check_end(self, job_id: str, *, fails: bool) -> None:
        job = await self._client.jobs.wait(job_id)
        expected = JobState.FAILED if fails else JobState.DONE
        if job.state is not expected:
            raise ScenarioError(f"end {job_id} {expected}", f"{job.state} {job.detail}")
        view = await self._client.jobs.get(job_id)
        ends = {it.name: it.state for it in view.nodes}
        wrong = {it: state for it, state in ends.items() if state is not _end_of(it, fails=fails)}
        if wrong:
            raise ScenarioError("end each task as in the text", str(wrong))
        each = [
            Text.assemble(f"{name} ", (state, _STYLES[state]))
            for name, state in sorted(ends.items())
        ]
        text = Text.assemble("  the job is ", (job.state, "bold"), ": ")
        self._say(text.append_text(Text(", ").join(each)))
        if job.detail:
            self._say(f"  {job.detail}", style="dim")

    def _expect(self, step: str, found: list[str], expected: tuple[str, ...]) -> None:
        if tuple(found) != expected:
            raise ScenarioError(step, f"got {_listed(found)}, not {_listed(expected)}")


def _end_of(task: str, *, fails: bool) -> NodeState:
    if not fails:
        return NodeState.DONE
    if task == FAILING:
        return NodeState.FAILED
    return NodeState.SKIPPED if task in SKIPPED else NodeState.DONE


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"
