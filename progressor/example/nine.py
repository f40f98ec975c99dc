"""Nine tasks that depend on each other, led by the engine or by a processor.

    1 ──a──► 4 ──h──► 9        After 1, none is ready: 4 and 7 also wait for others.
    1 ──b──► 7                 After 2: 4, 5 and 6. After 3 and 5: none.
    2 ──c──► 4                 After 4: 7, while 9 waits for 6. After 6: 8 and 9.
    2 ──d──► 5 ──i──► 8        If 4 fails, 7 and 9 are skipped, and 8 runs after 6.
    2 ──e──► 6 ──j──► 8
    2 ──f──► 7 ◄──g── 4
    6 ──k──► 9                 3 stands alone.

This is the example in the description of the Job Center, an ancestor of progressor's jobs, which
does not say where *f* leads. The scenario plays both worked examples of the text, a success and a
failure, with both kinds of leaders, and compares the tasks that are ready after each.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from progressor.example.scenario import Scenario, ScenarioError
from progressor.sdk import Fail, Graph, JobState, JobView, NodeState, Processor, Step

PREDECESSORS: Mapping[str, str] = {
    "1": "", "2": "", "3": "", "4": "12", "5": "2", "6": "2", "7": "124", "8": "56", "9": "46",
}  # fmt: skip

SUCCESS = (
    ("1", ""), ("2", "456"), ("3", ""), ("5", ""), ("4", "7"), ("6", "89"), ("8", ""), ("9", ""),
    ("7", ""),
)  # fmt: skip
"""The tasks in the order in which they end, and which are ready after each."""

FAILURE = (
    ("1", ""), ("2", "456"), ("3", ""), ("5", ""), ("4", ""), ("6", "8"), ("8", ""),
)  # fmt: skip
"""The same if 4 fails."""

FAILING, SKIPPED = "4", "79"


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
    for task, before in PREDECESSORS.items():
        graph.node(task, Work(run, task), after=[graph[it] for it in before])
    return graph


def tasks(succeeds: Callable[[Work], Awaitable[bool]]) -> Processor[Any]:
    """Return the processor of the nine tasks and of their leader; `succeeds` waits for the end."""
    processor = Processor("nine-tasks")

    @processor.init
    async def begin(step: Step[Any]) -> None:
        match step.args_as(Lead | Work):
            case Lead(run=run):
                step.start_nodes(nine_tasks(run))
            case work:
                if not await succeeds(work):
                    raise Fail(f"task {work.task} was told to fail", reason="TOLD_SO")
                step.complete({"task": work.task})

    @processor.join
    async def end(step: Step[Any]) -> None:
        undone = [it.name for it in step.nodes.values() if not it.is_done]
        if undone:
            raise Fail(f"not done: {', '.join(undone)}")
        step.complete({"done": list(step.nodes)})

    return processor


_STYLES = {NodeState.DONE: "green", NodeState.FAILED: "red", NodeState.SKIPPED: "yellow"}
_READY = frozenset({NodeState.READY, NodeState.RUNNING})
_ENDED = frozenset(it for it in NodeState if it.has_ended)
_EDGE_COUNT = sum(map(len, PREDECESSORS.values()))


class NineScenario(Scenario):
    """Four jobs of nine tasks, printed as they run."""

    goal = "run the jobs of nine tasks"
    commands = ("job list -n {namespace}", "job get -n {namespace} {id}")

    def __init__(self, *, console: Console, run: str) -> None:
        super().__init__(console=console, run=run)
        # If the engine gives a step up, the next attempt waits for the same outcome.
        self.processor = tasks(lambda work: asyncio.shield(self._outcome(work)))
        self._outcomes: dict[Work, asyncio.Future[bool]] = {}
        self._states: dict[str, NodeState] = {}

    async def _play(self) -> tuple[str, ...]:
        jobs: list[str] = []
        for led_by in ("the engine", "its own processor"):
            for steps in (SUCCESS, FAILURE):
                job_id = f"nine-{self._run}-{len(jobs) + 1}"
                jobs.append(job_id)
                what = f"a job of nine tasks and {_EDGE_COUNT} edges, led by {led_by}"
                self._say(what + (f"; {FAILING} will fail" * (steps is FAILURE)), style="bold")
                if led_by == "the engine":
                    graph = nine_tasks(job_id)
                    await self._client.jobs.submit(job_id, graph, idempotency_key="submit")
                else:
                    await self._client.start(job_id, Lead(job_id), idempotency_key="start")
                async with contextlib.aclosing(self._client.jobs.watch(job_id)) as changes:
                    await self._walk(job_id, steps, changes)
                await self._show_end(job_id, JobState.FAILED if steps is FAILURE else JobState.DONE)
        return tuple(jobs)

    def _outcome(self, work: Work) -> "asyncio.Future[bool]":
        return self._outcomes.setdefault(work, asyncio.get_running_loop().create_future())

    async def _walk(
        self, job_id: str, steps: Iterable[tuple[str, str]], changes: AsyncIterator[JobView]
    ) -> None:
        """End the tasks in order, and compare the ready tasks after each."""
        self._states = {}
        ready = await self._until(changes, "123", _READY)
        self._expect("begin", ready, "123")
        self._say(f"  ready at the beginning: {_listed(ready)}")
        for task, then in steps:
            fails = steps is FAILURE and task == FAILING
            self._outcome(Work(job_id, task)).set_result(not fails)
            ready = await self._until(changes, task, _ENDED)
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

    async def _until(
        self, changes: AsyncIterator[JobView], tasks: str, states: frozenset[NodeState]
    ) -> list[str]:
        """Follow the job until these tasks are in these states; return those that became ready.

        A task becomes ready in the transaction that ends its predecessor, so in the same message.
        """
        ready: list[str] = []
        async for view in changes:
            for node in view.nodes:
                if node.state in _READY and self._states.get(node.name) not in _READY:
                    ready.append(node.name)
                self._states[node.name] = node.state
            if all(self._states.get(it) in states for it in tasks):
                return sorted(ready)
        raise ScenarioError("watch the job", "it ended too early")

    async def _show_end(self, job_id: str, expected: JobState) -> None:
        job = await self._client.jobs.wait(job_id)
        if job.state is not expected:
            raise ScenarioError(f"end {job_id} {expected}", f"{job.state} {job.detail}")
        nodes = sorted((await self._client.jobs.get(job_id)).nodes, key=lambda it: it.name)
        each = [Text.assemble(f"{it.name} ", (it.state, _STYLES[it.state])) for it in nodes]
        text = Text.assemble("  the job is ", (job.state, "bold"), ": ")
        self._say(text.append_text(Text(", ").join(each)))
        if job.detail:
            self._say(f"  {job.detail}", style="dim")

    def _expect(self, step: str, found: list[str], expected: str) -> None:
        if found != list(expected):
            raise ScenarioError(step, f"got {_listed(found)}, not {_listed(expected)}")


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"
