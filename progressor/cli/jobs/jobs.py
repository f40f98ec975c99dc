"""Commands about jobs: submit, get, list, watch, retry, cancel."""

import sys
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.console import Console, RenderableType

from progressor.cli.input.inputs import PAGE_MAX, bad_input, check_limit, first, option, parsed
from progressor.cli.input.job_documents import JOB_FORMAT, Deadline, deadline_of, placed, read_job
from progressor.cli.input.options import IN_DEFAULT_NAMESPACE, NamespaceOptions, client_of
from progressor.cli.jobs.drawing import mermaid as flowchart
from progressor.cli.jobs.drawing import shown_name
from progressor.cli.jobs.view import graph_lines, job_facts, jobs_table, nodes_table, vertices_of
from progressor.cli.jobs.watch import code_of, watch_job
from progressor.cli.output.failures import ExitCode
from progressor.cli.output.output import PIPE_COLUMNS, facts, more_note, print_line, show
from progressor.sdk.values.jobs import JobState, JobView

_NAMES_SHOWN = 20

State = Literal["running", "done", "failed", "cancelled"]
DeadlineOption = Annotated[
    str | None,
    option("When the job fails if it has not ended: a duration such as 2h, or an instant."),
]


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
    options: NamespaceOptions = IN_DEFAULT_NAMESPACE,
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
            return await watch_job(client, called, as_json=False)
        ended = await client.jobs.wait(called)
        show(await client.jobs.get(called), as_json=True)
        return code_of(ended)


submit.__doc__ = f"{submit.__doc__}\n\n{JOB_FORMAT}"


async def get(
    job_id: str,
    /,
    *,
    mermaid: Annotated[bool, option("Print only the graph, as a Mermaid flowchart.")] = False,
    options: NamespaceOptions = IN_DEFAULT_NAMESPACE,
) -> None:
    """Print a job, its graph and its nodes; with --json, also args and results."""
    if mermaid and options.json:
        raise bad_input("--mermaid", "cannot be combined with --json")
    async with client_of(options) as client:
        view = await client.jobs.get(job_id, payloads=options.json)
    if mermaid:
        for line in flowchart(vertices_of(view.nodes)).splitlines():
            print_line(line)
        return
    show(view, *_people(view), as_json=options.json)


async def list_jobs(
    *,
    state: Annotated[tuple[State, ...], option("Only in this state; may be repeated.")] = (),
    schedule: Annotated[str, option("Only if submitted by this schedule.")] = "",
    limit: Annotated[int, option("The maximum number of jobs.")] = 100,
    options: NamespaceOptions = IN_DEFAULT_NAMESPACE,
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
    show(document, jobs_table(jobs), *more_note(limit, more=more), as_json=options.json)


async def watch(job_id: str, /, *, options: NamespaceOptions = IN_DEFAULT_NAMESPACE) -> ExitCode:
    """Watch a job until it ends, for any length of time; the exit code says how it ended.

    A terminal shows the graph as it changes. A pipe gets a line for each change; with --json, each
    line is a document. If the engine becomes unavailable, it is retried for up to --timeout.
    """
    async with client_of(options) as client:
        return await watch_job(client, job_id, as_json=options.json)


async def retry(
    job_id: str,
    /,
    *,
    deadline: DeadlineOption = None,
    options: NamespaceOptions = IN_DEFAULT_NAMESPACE,
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
    options: NamespaceOptions = IN_DEFAULT_NAMESPACE,
) -> None:
    """Cancel a job: nodes that have not started are cancelled, running steps finish."""
    async with client_of(options) as client:
        job = await client.jobs.cancel(job_id, cause=reason)
    show(job, job_facts(job), as_json=options.json)


def _people(view: JobView) -> list[RenderableType]:
    width = Console().width if sys.stdout.isatty() else PIPE_COLUMNS
    graph = graph_lines(view.nodes, width=width)
    return [job_facts(view.job), "", *graph, "", *nodes_table(view.nodes)]


def _deadline(text: str | None) -> Deadline | None:
    return None if text is None else parsed("--deadline", deadline_of, text)
