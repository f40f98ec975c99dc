"""Commands about jobs: submit, get, list, watch, retry, cancel."""

import dataclasses
import sys
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.console import Console, RenderableType
from rich.text import Text

from progressor.cli.input.engines import client_of
from progressor.cli.input.inputs import bad_input, option
from progressor.cli.input.job_documents import Deadline, deadline_of, placed, read_job
from progressor.cli.input.options import DEFAULT_TARGET, Target
from progressor.cli.jobs.drawing import shown_name
from progressor.cli.jobs.mermaid import mermaid as flowchart
from progressor.cli.jobs.view import graph_lines, job_facts, jobs_table, nodes_table, vertices_of
from progressor.cli.jobs.watch import await_job, watch_job
from progressor.cli.output.exit_codes import ExitCode
from progressor.cli.output.output import PIPE_COLUMNS, Output, facts, print_line
from progressor.sdk.values.jobs import Job, JobState, JobSubmitted, JobView

_PAGE_MAX = 1000
_LIMIT_MAX = 1_000_000
_NAMES_SHOWN = 20

State = Literal["running", "done", "failed", "cancelled"]
DeadlineOption = Annotated[
    str | None,
    option("When it fails if it has not ended: from now on, as in 2h, or an instant."),
]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Submitted:
    """What submit prints of a job that is durable."""

    job_id: str
    task_id: int
    deduplicated: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ListedJobs:
    """What list prints; ``more`` says that the limit cut it."""

    jobs: tuple[Job, ...]
    more: bool


async def submit(  # options, all named
    file: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *,
    job_id: Annotated[
        str, Parameter(name="--id", help="Of the job; in place of the file's job_id.")
    ] = "",
    deadline: DeadlineOption = None,
    idempotency_key: Annotated[
        str, option("Makes it safe to repeat: same key and request, one job.")
    ] = "",
    wait: Annotated[
        bool, option("Watch it until it ends, however long; the exit code tells how.")
    ] = False,
    target: Target = DEFAULT_TARGET,
) -> ExitCode:
    """Submit a job from a file; return once it is durable."""
    due = _deadline(deadline)
    document = read_job(file)
    called = job_id or document.job_id
    if not called:
        raise bad_input("--id", "give one, or job_id in the file")
    output = Output(as_json=target.json)
    async with client_of(target) as client:
        with placed(document):
            submitted = await client.jobs.submit(
                called,
                document.graph,
                deadline=document.deadline if due is None else due,
                idempotency_key=idempotency_key,
                context=document.context,
                metadata=document.metadata,
            )
        if not wait:
            output.show(*_submitted(called, submitted))
            return ExitCode.DONE
        if not target.json:
            return await watch_job(client, called, as_json=False)
        code = await await_job(client, called)
        output.show(await client.jobs.get(called))
        return code


async def get(
    job_id: str,
    /,
    *,
    mermaid: Annotated[
        bool, option("Print the graph as a Mermaid flowchart, and nothing else.")
    ] = False,
    target: Target = DEFAULT_TARGET,
) -> None:
    """Print a job: how it stands, its graph, and its nodes; args and results with --json alone."""
    if mermaid and target.json:
        raise bad_input("--mermaid", "is a form of its own: not with --json")
    async with client_of(target) as client:
        view = await client.jobs.get(job_id, payloads=target.json)
    if mermaid:
        for line in flowchart(vertices_of(view.nodes)).splitlines():
            print_line(line)
        return
    Output(as_json=target.json).show(view, *_people(view))


async def list_jobs(
    *,
    state: Annotated[tuple[State, ...], option("Only in this state; may be repeated.")] = (),
    schedule: Annotated[str, option("Only those that this schedule started.")] = "",
    limit: Annotated[int, option("At most so many.")] = 100,
    target: Target = DEFAULT_TARGET,
) -> None:
    """Print the jobs of a namespace, the youngest first."""
    if not 1 <= limit <= _LIMIT_MAX:
        raise bad_input("--limit", f"{limit} is not in 1 .. {_LIMIT_MAX:,}")
    jobs: list[Job] = []
    async with client_of(target) as client:
        found = client.jobs.list(
            states=[JobState(it) for it in state],
            schedule_id=schedule,
            page_size=min(_PAGE_MAX, limit + 1),
        )
        async for job in found:
            jobs.append(job)
            if len(jobs) > limit:
                break
    listed = ListedJobs(jobs=tuple(jobs[:limit]), more=len(jobs) > limit)
    people: list[RenderableType] = [jobs_table(listed.jobs) if jobs else Text("no jobs")]
    if listed.more:
        people.append(Text(f"… more behind the first {limit:,}", style="dim"))
    Output(as_json=target.json).show(listed, *people)


async def watch(job_id: str, /, *, target: Target = DEFAULT_TARGET) -> ExitCode:
    """Watch a job until it ends, however long that takes; the exit code tells how it did.

    On a terminal its graph is drawn as it changes; in a pipe each change is a line, with --json a
    document in one line. An engine that goes away is asked again for --timeout.
    """
    async with client_of(target) as client:
        return await watch_job(client, job_id, as_json=target.json)


async def retry(
    job_id: str, /, *, deadline: DeadlineOption = None, target: Target = DEFAULT_TARGET
) -> None:
    """Go on with a failed job from its failed nodes; what is done stays done.

    What they caused to be skipped waits for them again. Without --deadline it has none any more.
    """
    due = _deadline(deadline)
    async with client_of(target) as client:
        retried = await client.jobs.retry(job_id, deadline=due)
    names = ", ".join(map(shown_name, retried.nodes[:_NAMES_SHOWN]))
    more = len(retried.nodes) - _NAMES_SHOWN
    begin = (
        f"{len(retried.nodes):,} begin again: {names}{f' and {more:,} more' if more > 0 else ''}"
    )
    words = Text(f"job {job_id} goes on; of its nodes {begin}")
    Output(as_json=target.json).show(retried, words)


async def cancel(
    job_id: str,
    /,
    *,
    reason: Annotated[str, option("Kept with the nodes that it ends.")] = "",
    target: Target = DEFAULT_TARGET,
) -> None:
    """End a job: what has not begun is cancelled, what is in a step ends that step."""
    async with client_of(target) as client:
        job = await client.jobs.cancel(job_id, cause=reason)
    Output(as_json=target.json).show(job, job_facts(job))


def _people(view: JobView) -> list[RenderableType]:
    console = Console()
    width = console.width if sys.stdout.isatty() else PIPE_COLUMNS
    return [
        job_facts(view.job),
        "",
        *graph_lines(view.nodes, width=width),
        "",
        *nodes_table(view.nodes),
    ]


def _submitted(job_id: str, submitted: JobSubmitted) -> tuple[Submitted, RenderableType]:
    known = "an earlier request with this key did the work" if submitted.deduplicated else ""
    people = facts({"job": job_id, "task": str(submitted.task_id), "deduplicated": known})
    document = Submitted(
        job_id=job_id, task_id=submitted.task_id, deduplicated=submitted.deduplicated
    )
    return document, people


def _deadline(text: str | None) -> Deadline | None:
    try:
        return None if text is None else deadline_of(text)
    except ValueError as error:
        raise bad_input("--deadline", str(error)) from error
