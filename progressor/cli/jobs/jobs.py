"""Commands about jobs: submit, get, list, watch, retry, cancel."""

import contextlib
import datetime as dt
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.text import Text

from progressor.cli.input.job_documents import JOB_FORMAT, Deadline, deadline_of, placed, read_job
from progressor.cli.input.options import (
    PAGE_MAX,
    NamespaceOptions,
    bad_input,
    check_limit,
    client_of,
    first,
    option,
    parsed,
)
from progressor.cli.input.signals import until_signal
from progressor.cli.jobs.drawing import LOOKS, drawing, look_of, shown_name
from progressor.cli.jobs.drawing import mermaid as flowchart
from progressor.cli.output import (
    PIPE_COLUMNS,
    Column,
    ExitCode,
    SafeConsole,
    duration_text,
    facts,
    instant_text,
    more_note,
    one_line,
    print_line,
    render,
    show,
    table,
)
from progressor.domain.jobs.roles import NodeCounts
from progressor.domain.views.graph_layout import Vertex
from progressor.sdk.client.client import Client
from progressor.sdk.transport.failures import EngineUnavailableError
from progressor.sdk.values.jobs import Job, JobState, JobView, Node, NodeState

_NAMES_SHOWN = 20

State = Literal["running", "done", "failed", "cancelled"]
DeadlineOption = Annotated[
    str | None,
    option("When the job fails if it has not ended: a duration such as 2h, or an instant."),
]


_NODES_SHOWN = 100
"""The maximum number of rows in a table of nodes; if there are more, they are sorted by state."""

_STATE_STYLES: Mapping[str, str] = {
    JobState.RUNNING: "green",
    JobState.DONE: "blue",
    JobState.FAILED: "bold red",
    JobState.CANCELLED: "magenta",
}
_CODES: Mapping[JobState, ExitCode] = {
    JobState.DONE: ExitCode.DONE,
    JobState.FAILED: ExitCode.JOB_FAILED,
    JobState.CANCELLED: ExitCode.JOB_CANCELLED,
}

Show = Callable[[JobView, Sequence[Node], bool], object]
"""Shows a view: the nodes that it changes, and whether it changes the state of the job."""


async def submit(  # options, all named
    file: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    job_id: Annotated[
        str, Parameter(name="--id", help="The id of the job, instead of the file's job_id.")
    ] = "",
    deadline: DeadlineOption = None,
    idempotency_key: Annotated[
        str, option("Makes the request safe to repeat: the same key and request submit one job.")
    ] = "",
    wait: Annotated[
        bool, option("Watch the job until it ends; the exit code says how it ended.")
    ] = False,
    options: NamespaceOptions = NamespaceOptions(),
) -> ExitCode:
    """Submit a job from a file; return once it is durable."""
    due = _deadline(deadline)
    job = read_job(file)
    called = job_id or job.job_id
    if not called:
        raise bad_input("--id", "--id or job_id in the file must be given")
    async with client_of(options) as client:
        with placed(job):
            submitted = await client.jobs.submit(
                called,
                job.graph,
                deadline=job.deadline if due is None else due,
                idempotency_key=idempotency_key,
                context=job.context,
                metadata=job.metadata,
            )
        if not wait:
            document = {
                "job_id": called,
                "task_id": submitted.task_id,
                "deduplicated": submitted.deduplicated,
            }
            again = "yes, by an earlier request with this key" if submitted.deduplicated else ""
            pairs = {"job": called, "task": str(submitted.task_id), "deduplicated": again}
            show(document, facts(pairs), as_json=options.json)
            return ExitCode.DONE
        if not options.json:
            return await _watch(client, called, as_json=False)
        ended = await client.jobs.wait(called)
        show(await client.jobs.get(called), as_json=True)
        return _code_of(ended)


submit.__doc__ = f"{submit.__doc__}\n\n{JOB_FORMAT}"


async def get(
    job_id: str,
    /,
    *,
    mermaid: Annotated[bool, option("Print only the graph, as a Mermaid flowchart.")] = False,
    options: NamespaceOptions = NamespaceOptions(),
) -> None:
    """Print a job, its graph and its nodes; with --json, also args and results."""
    if mermaid and options.json:
        raise bad_input("--mermaid", "cannot be combined with --json")
    async with client_of(options) as client:
        view = await client.jobs.get(job_id, payloads=options.json)
    if mermaid:
        for line in flowchart(_vertices(view.nodes)).splitlines():
            print_line(line)
        return
    show(view, *_people(view), as_json=options.json)


async def list_jobs(
    *,
    state: Annotated[tuple[State, ...], option("Only in this state; may be repeated.")] = (),
    schedule: Annotated[str, option("Only if submitted by this schedule.")] = "",
    limit: Annotated[int, option("The maximum number of jobs.")] = 100,
    options: NamespaceOptions = NamespaceOptions(),
) -> None:
    """Print the jobs of a namespace, newest first."""
    check_limit(limit)
    async with client_of(options) as client:
        listing = client.jobs.list(
            states=[JobState(it) for it in state],
            schedule_id=schedule,
            page_size=min(PAGE_MAX, limit + 1),
        )
        jobs, more = await first(limit, listing)
    document = {"jobs": jobs, "more": more}
    people = table(_JOBS, jobs) if jobs else "no jobs"
    show(document, people, *more_note(limit, more=more), as_json=options.json)


async def watch(job_id: str, /, *, options: NamespaceOptions = NamespaceOptions()) -> ExitCode:
    """Watch a job until it ends, for any length of time; the exit code says how it ended.

    A terminal shows the graph as it changes. A pipe gets a line for each change; with --json, each
    line is a document. If the engine becomes unavailable, it is retried for up to --timeout.
    """
    async with client_of(options) as client:
        return await _watch(client, job_id, as_json=options.json)


async def retry(
    job_id: str,
    /,
    *,
    deadline: DeadlineOption = None,
    options: NamespaceOptions = NamespaceOptions(),
) -> None:
    """Retry a failed job from its failed nodes; nodes that are done do not run again.

    Nodes that were skipped because of a failed node wait again. Without --deadline, the job no
    longer has a deadline.
    """
    due = _deadline(deadline)
    async with client_of(options) as client:
        retried = await client.jobs.retry(job_id, deadline=due)
    names = ", ".join(map(shown_name, retried.nodes[:_NAMES_SHOWN]))
    more = len(retried.nodes) - _NAMES_SHOWN
    rest = f" and {more:,} more" if more > 0 else ""
    count = len(retried.nodes)
    nodes = f"{count:,} {'node' if count == 1 else 'nodes'}"
    words = f"retrying job {job_id} from {nodes}: {names}{rest}"
    show(retried, words, as_json=options.json)


async def cancel(
    job_id: str,
    /,
    *,
    reason: Annotated[str, option("The reason, stored with the nodes that end.")] = "",
    options: NamespaceOptions = NamespaceOptions(),
) -> None:
    """Cancel a job: nodes that have not started are cancelled, running steps finish."""
    async with client_of(options) as client:
        job = await client.jobs.cancel(job_id, cause=reason)
    show(job, _job_facts(job), as_json=options.json)


def _people(view: JobView) -> list[RenderableType]:
    width = Console().width if sys.stdout.isatty() else PIPE_COLUMNS
    graph = drawing(_vertices(view.nodes), width=width)
    return [_job_facts(view.job), "", *graph, "", *_nodes_table(view.nodes)]


def _deadline(text: str | None) -> Deadline | None:
    return None if text is None else parsed("--deadline", deadline_of, text)


def _job_facts(job: Job) -> RenderableType:
    return facts(
        {
            "job": f"{one_line(job.job_id)} in {job.namespace}",
            "state": _state_text(job.state),
            "detail": one_line(job.detail),
            "nodes": counts_text(job.counts),
            "led by": "" if job.led_by_engine else "its processor",
            "schedule": one_line(job.schedule_id),
            "created": instant_text(job.created_at),
            "ended": f"{instant_text(job.ended_at)}, after {took_text(job)}"
            if job.ended_at
            else "",
            "deadline": instant_text(job.deadline),
            "retries": str(job.retry_count) if job.retry_count else "",
        }
    )


def _vertices(nodes: Iterable[Node]) -> list[Vertex]:
    return [Vertex(it.name, it.state, it.after) for it in nodes]


def _nodes_table(nodes: Sequence[Node]) -> list[RenderableType]:
    shown = nodes
    if len(nodes) > _NODES_SHOWN:
        rank = {state: place for place, state in enumerate(LOOKS)}
        shown = sorted(nodes, key=lambda it: rank.get(it.state, -1))[:_NODES_SHOWN]
    left_out = len(nodes) - len(shown)
    note = [Text(f"… {left_out:,} more; --json prints all", style="dim")] if left_out else []
    return [table(_NODES, shown), *note]


def _state_text(state: JobState) -> Text:
    return Text(state, style=_STATE_STYLES.get(state, ""))


def _node_state_text(node: Node) -> Text:
    look = look_of(node.state)
    return Text(f"{look.symbol} {node.state}", style=look.style)


def counts_text(counts: NodeCounts) -> Text:
    """Return the number of nodes in each state, with the symbols of the drawing."""
    found = []
    for state in NodeState:
        count = getattr(counts, state, 0)
        if count:
            look = look_of(state)
            found.append(Text(f"{look.symbol} {count:,} {state}", style=look.style))
    return Text("  ").join(found)


def _why_text(node: Node) -> str:
    """Return why a node failed or was skipped, in one line."""
    if node.skipped_because_of:
        return f"because of {shown_name(node.skipped_because_of)}"
    if node.error is None:
        return ""
    words = (one_line(it) for it in (node.error.reason, node.error.message))
    return ": ".join(it for it in words if it)


def took_text(it: Job | Node) -> str:
    """Return how long a job or node ran; "" if it has not ended, or never started."""
    began_at = it.started_at if isinstance(it, Node) else it.created_at
    return "" if began_at is None or it.ended_at is None else duration_text(it.ended_at - began_at)


def _since(node: Node) -> dt.datetime | None:
    began = {NodeState.WAITING: node.created_at, NodeState.READY: node.ready_at}
    began[NodeState.RUNNING] = node.started_at
    return began.get(node.state, node.ended_at)


_NODES: Mapping[str, Column[Node]] = {
    "node": lambda it: shown_name(it.name),
    "status": _node_state_text,
    "at": lambda it: instant_text(_since(it)),
    "took": took_text,
    "process": lambda it: one_line(it.process_id),
    "attempt": lambda it: "" if it.attempt <= 1 else str(it.attempt),
    "why": _why_text,
}
_JOBS: Mapping[str, Column[Job]] = {
    "job": lambda it: one_line(it.job_id),
    "status": lambda it: _state_text(it.state),
    "nodes": lambda it: counts_text(it.counts),
    "created": lambda it: instant_text(it.created_at),
    "took": took_text,
    "schedule": lambda it: one_line(it.schedule_id),
    "detail": lambda it: one_line(it.detail),
}


class _JobProgress:
    """The state of a job after the views received so far."""

    def __init__(self, view: JobView) -> None:
        self.job = view.job
        self._nodes = {it.name: it for it in view.nodes}

    def take(self, view: JobView) -> list[Node]:
        """Apply a view, and return the nodes whose state or attempt it changes."""
        self.job = view.job
        before = {it.name: (it.state, it.attempt) for it in self._nodes.values()}
        self._nodes |= {it.name: it for it in view.nodes}
        return [it for it in view.nodes if before.get(it.name) != (it.state, it.attempt)]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        del console
        yield _job_facts(self.job)
        yield ""
        yield from drawing(_vertices(self._nodes.values()), width=options.max_width)


async def _watch(client: Client, job_id: str, *, as_json: bool) -> ExitCode:
    """Show a job until it ends, and return its exit code; Ctrl-C does not affect the job."""
    # Not as part of the watch, which retries: an unavailable engine must be reported at once.
    first = await client.jobs.get(job_id, payloads=False)
    progress = _JobProgress(first)
    if not as_json and sys.stdout.isatty() and not Console().is_dumb_terminal:
        await until_signal(_draw(client, progress))
    else:
        show = _print_document if as_json else _print_lines
        show(first, (), True)  # noqa: FBT003  as for any view
        await _follow(client, progress, show)
    return _code_of(progress.job)


def _code_of(job: Job) -> ExitCode:
    """Return the exit code of an ended job; for a running one, that the watch was interrupted."""
    return _CODES.get(job.state, ExitCode.INTERRUPTED)


async def _draw(client: Client, progress: _JobProgress) -> None:
    """Refresh the drawing on the terminal; the last one remains there."""
    with Live(progress, console=SafeConsole(highlight=False), auto_refresh=False) as live:
        live.refresh()
        await _follow(client, progress, lambda *_: live.refresh())


async def _follow(client: Client, progress: _JobProgress, show: Show) -> None:
    """Apply and show the changes after `progress`, until the job has ended."""
    job = progress.job
    if job.state.has_ended:
        return
    watching = client.jobs.watch(job.job_id, after_revision=job.revision)
    async with contextlib.aclosing(watching) as views:
        async for view in views:
            before = progress.job.state
            show(view, progress.take(view), view.job.state is not before)
    if not progress.job.state.has_ended:
        raise EngineUnavailableError(
            f"job {job.job_id!r}", "the engine ended the stream of changes"
        )


def _print_document(view: JobView, *_: object) -> None:
    print_line(render(view, indent=-1))


def _print_lines(view: JobView, changed: Sequence[Node], is_new_state: bool) -> None:  # noqa: FBT001  `Show`
    for node in changed:
        _print_node(node)
    if is_new_state:
        job, took = view.job, took_text(view.job)
        words = f"job {one_line(job.job_id)} is {job.state}"
        words += f" after {took}" if took else ""
        _print_event(job.updated_at, f"{words}: {counts_text(job.counts).plain}", job.detail)


def _print_node(node: Node) -> None:
    words = f"{_node_state_text(node).plain} {shown_name(node.name)}"
    words += f", attempt {node.attempt}" if node.attempt > 1 else ""
    took = took_text(node)
    words += f", took {took}" if took else ""
    at = node.ended_at or node.started_at or node.ready_at or node.created_at
    _print_event(at, words, _why_text(node))


def _print_event(at: dt.datetime | None, words: str, why: str) -> None:
    print_line(f"{instant_text(at)}  {words}" + (f", {one_line(why)}" if why else ""))
