"""Watches a job until it ends: a drawing that is refreshed on a terminal, else a line per change.

views (first all nodes, then changed ones) ──► JobProgress ──► a drawing, or lines
"""

import contextlib
import datetime as dt
import sys
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live

from progressor.cli.input.signals import until_signal
from progressor.cli.jobs.drawing import shown_name
from progressor.cli.jobs.view import (
    counts_text,
    graph_lines,
    job_facts,
    node_state_text,
    took_text,
    why_text,
)
from progressor.cli.output.documents import render
from progressor.cli.output.failures import ExitCode
from progressor.cli.output.output import SafeConsole, instant_text, one_line, print_line
from progressor.sdk.client.client import Client
from progressor.sdk.transport.failures import EngineUnavailableError
from progressor.sdk.values.jobs import Job, JobState, JobView, Node

_CODES: Mapping[JobState, ExitCode] = {
    JobState.DONE: ExitCode.DONE,
    JobState.FAILED: ExitCode.JOB_FAILED,
    JobState.CANCELLED: ExitCode.JOB_CANCELLED,
}


class JobProgress:
    """The state of a job after the views received so far."""

    def __init__(self, view: JobView) -> None:
        self.job = view.job
        self._nodes = {it.name: it for it in view.nodes}

    def take(self, view: JobView) -> list[Node]:
        """Apply a view, and return the nodes whose state or attempt it changes."""
        self.job = view.job
        changed = [it for it in view.nodes if _has_changed(self._nodes.get(it.name), it)]
        self._nodes |= {it.name: it for it in view.nodes}
        return changed

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        del console
        yield job_facts(self.job)
        yield ""
        yield from graph_lines([*self._nodes.values()], width=options.max_width)


Show = Callable[[JobView, Sequence[Node], bool], object]
"""Shows a view: the nodes that it changes, and whether it changes the state of the job."""


async def watch_job(client: Client, job_id: str, *, as_json: bool) -> ExitCode:
    """Show a job until it ends, and return its exit code; Ctrl-C does not affect the job.

    Raises:
        BrokenPipeError: The reader has closed the pipe.
    """
    # Not as part of the watch, which retries: an unavailable engine must be reported at once.
    first = await client.jobs.get(job_id, payloads=False)
    progress = JobProgress(first)
    if not as_json and sys.stdout.isatty() and not Console().is_dumb_terminal:
        await until_signal(_draw(client, progress))
    else:
        show = _print_document if as_json else _print_lines
        show(first, (), True)  # noqa: FBT003  as for any view
        await _follow(client, progress, show)
    return code_of(progress.job)


def code_of(job: Job) -> ExitCode:
    """Return the exit code of an ended job; for a running one, that the watch was interrupted."""
    return _CODES.get(job.state, ExitCode.INTERRUPTED)


async def _draw(client: Client, progress: JobProgress) -> None:
    """Refresh the drawing on the terminal; the last one remains there."""
    with Live(progress, console=SafeConsole(highlight=False), auto_refresh=False) as live:
        live.refresh()
        await _follow(client, progress, lambda *_: live.refresh())


async def _follow(client: Client, progress: JobProgress, show: Show) -> None:
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


def _has_changed(before: Node | None, node: Node) -> bool:
    return before is None or (before.state, before.attempt) != (node.state, node.attempt)


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
    words = f"{node_state_text(node).plain} {shown_name(node.name)}"
    words += f", attempt {node.attempt}" if node.attempt > 1 else ""
    took = took_text(node)
    words += f", took {took}" if took else ""
    at = node.ended_at or node.started_at or node.ready_at or node.created_at
    _print_event(at, words, why_text(node))


def _print_event(at: dt.datetime | None, words: str, why: str) -> None:
    print_line(f"{instant_text(at)}  {words}" + (f", {one_line(why)}" if why else ""))
