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
leads, to 7, 8 or 9; here it leads to 7.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from progressor.sdk import Fail, Graph, NamespaceConfig, Processor, Step

NAMESPACE = "nine-tasks"

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
    processor = Processor(NAMESPACE)

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


def namespace(processor_target: str) -> NamespaceConfig:
    """Return the namespace of the nine tasks."""
    return NamespaceConfig(name=NAMESPACE, processor_targets=(processor_target,))
