"""Watches a job until it ends: a drawing that is refreshed on a terminal, else a line per change.

views (first all nodes, then changed ones) ──► JobProgress ──► a drawing, or lines
"""

import contextlib
import datetime as dt
import sys
from collections.abc import AsyncIterator, Mapping

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
from progressor.cli.output.output import (
    SafeConsole,
    duration_text,
    instant_text,
    one_line,
    print_line,
)
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

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(self._nodes.values())

    def take(self, view: JobView) -> list[Node]:
        """Apply a view, and return the nodes whose state or attempt it changes."""
        self.job = view.job
        changed = [it for it in view.nodes if _has_changed(self._nodes.get(it.name), it)]
        self._nodes |= {it.name: it for it in view.nodes}
        return changed

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Render facts and drawing in the available width."""
        del console
        yield job_facts(self.job)
        yield ""
        yield from graph_lines(self.nodes, width=options.max_width)


async def watch_job(client: Client, job_id: str, *, as_json: bool) -> ExitCode:
    """Show a job until it ends, and return its exit code; Ctrl-C does not affect the job.

    Raises:
        BrokenPipeError: The reader has closed the pipe.
    """
    # Not as part of the watch, which retries: an unavailable engine must be reported at once.
    first = await client.jobs.get(job_id, payloads=False)
    progress = JobProgress(first)
    if as_json:
        await _print_documents(client, first, progress)
    elif sys.stdout.isatty() and not Console().is_dumb_terminal:
        await until_signal(_draw(client, progress))
    else:
        await _print_lines(client, progress)
    return code_of(progress.job)


async def await_job(client: Client, job_id: str) -> ExitCode:
    """Wait for a job to end, and return its exit code."""
    return code_of(await client.jobs.wait(job_id))


def code_of(job: Job) -> ExitCode:
    """Return the exit code of an ended job; for a running one, that the watch was interrupted."""
    return _CODES.get(job.state, ExitCode.INTERRUPTED)


async def _print_documents(client: Client, first: JobView, progress: JobProgress) -> None:
    print_line(render(first, indent=-1))
    async for view in _changes(client, progress):
        progress.take(view)
        print_line(render(view, indent=-1))


async def _print_lines(client: Client, progress: JobProgress) -> None:
    print_line(_job_line(progress.job))
    async for view in _changes(client, progress):
        before = progress.job.state
        for node in progress.take(view):
            print_line(_node_line(node))
        if progress.job.state is not before:
            print_line(_job_line(progress.job))


async def _draw(client: Client, progress: JobProgress) -> None:
    """Draw the job until it ends; the last drawing remains on the terminal."""
    console = SafeConsole(highlight=False)
    with Live(progress, console=console, auto_refresh=False) as live:
        live.refresh()
        async for view in _changes(client, progress):
            progress.take(view)
            live.refresh()


async def _changes(client: Client, progress: JobProgress) -> AsyncIterator[JobView]:
    """Yield the changes after `progress`, until the job has ended."""
    job = progress.job
    if job.state.has_ended:
        return
    watching = client.jobs.watch(job.job_id, after_revision=job.revision)
    async with contextlib.aclosing(watching) as views:
        async for view in views:
            yield view
    if not progress.job.state.has_ended:
        raise EngineUnavailableError(
            f"job {job.job_id!r}", "the engine ended the stream of changes"
        )


def _has_changed(before: Node | None, node: Node) -> bool:
    return before is None or (before.state, before.attempt) != (node.state, node.attempt)


def _job_line(job: Job) -> str:
    took = "" if job.ended_at is None else f" after {duration_text(job.ended_at - job.created_at)}"
    words = f"job {one_line(job.job_id)} is {job.state}{took}: {counts_text(job.counts).plain}"
    detail = one_line(job.detail)
    return _line(job.updated_at, f"{words}, {detail}" if detail else words)


def _node_line(node: Node) -> str:
    words = f"{node_state_text(node).plain} {shown_name(node.name)}"
    words += f", attempt {node.attempt}" if node.attempt > 1 else ""
    took, why = took_text(node), why_text(node)
    words += f", took {took}" if took else ""
    at = node.ended_at or node.started_at or node.ready_at or node.created_at
    return _line(at, f"{words}, {why}" if why else words)


def _line(at: dt.datetime | None, words: str) -> str:
    return f"{instant_text(at)}  {words}"
