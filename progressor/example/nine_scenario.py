"""The two worked examples of the Job Center, a success and a failure, with both kinds of leaders.

The tasks end in the order of the text. After each of them, the tasks that became ready are printed
and compared with the text.
"""

import contextlib
from collections.abc import AsyncIterator, Mapping

from rich.console import Console
from rich.text import Text

from progressor.example.nine import (
    EDGES,
    FAILING,
    FAILURE,
    SKIPPED,
    SUCCESS,
    Lead,
    Turns,
    nine_tasks,
    tasks,
)
from progressor.example.scenario import ScenarioError, attempting
from progressor.sdk import Client, JobState, JobView, NodeState

_TIMEOUT_SECONDS = 30.0
_STYLES: Mapping[NodeState, str] = {
    NodeState.DONE: "green",
    NodeState.FAILED: "red",
    NodeState.SKIPPED: "yellow",
}

_READY = frozenset({NodeState.READY, NodeState.RUNNING})
_ENDED = frozenset(it for it in NodeState if it.has_ended)

Steps = tuple[tuple[str, tuple[str, ...]], ...]


class NineScenario:
    """Four jobs of nine tasks, printed as they run; `run` makes their ids unique."""

    _client: Client

    def __init__(self, *, console: Console, run: str) -> None:
        self._console, self._run = console, run
        self._turns = Turns()
        self.processor = tasks(self._turns)
        self._states: dict[str, NodeState] = {}

    async def play(self, client: Client) -> tuple[str, ...]:
        """Run the scenario, which takes a second; return the ids of the jobs.

        Args:
            client: Its namespace is that of the nine tasks.

        Raises:
            ScenarioError: An unexpected result; the message says which.
        """
        self._client = client
        jobs: list[str] = []
        for led_by in ("the engine", "its own processor"):
            for steps in (SUCCESS, FAILURE):
                fails = steps is FAILURE
                job_id = f"nine-{self._run}-{len(jobs) + 1}"
                self._say(
                    f"a job of nine tasks and {len(EDGES)} edges, led by {led_by}"
                    + (f"; {FAILING} will fail" if fails else ""),
                    style="bold",
                )
                await self._play_one(job_id, led_by=led_by, steps=steps)
                jobs.append(job_id)
        return tuple(jobs)

    async def _play_one(self, job_id: str, *, led_by: str, steps: Steps) -> None:
        async with attempting(f"run {job_id}", seconds=_TIMEOUT_SECONDS):
            await self._submit(job_id, led_by)
            async with contextlib.aclosing(self._client.jobs.watch(job_id)) as changes:
                await self._walk(job_id, steps, changes)
            await self._check_end(job_id, fails=steps is FAILURE)

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
            self._console.print(text, soft_wrap=True)

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
        """Check the end of the job and of each of its nodes."""
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
        self._console.print(text.append_text(Text(", ").join(each)), soft_wrap=True)
        if job.detail:
            self._say(f"  {job.detail}", style="dim")

    def _expect(self, step: str, found: list[str], expected: tuple[str, ...]) -> None:
        if tuple(found) != expected:
            raise ScenarioError(step, f"got {_listed(found)}, not {_listed(expected)}")

    def _say(self, text: str, *, style: str = "") -> None:
        self._console.print(Text(text, style), soft_wrap=True)


def _end_of(task: str, *, fails: bool) -> NodeState:
    if not fails:
        return NodeState.DONE
    if task == FAILING:
        return NodeState.FAILED
    return NodeState.SKIPPED if task in SKIPPED else NodeState.DONE


def _listed(names: list[str] | tuple[str, ...]) -> str:
    return ", ".join(names) or "nothing"
