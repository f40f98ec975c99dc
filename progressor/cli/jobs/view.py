"""How jobs are shown by get, list and watch: facts, the drawing of the graph, tables."""

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence

from rich.console import RenderableType
from rich.text import Text

from progressor.cli.jobs.drawing import LOOKS, Vertex, drawing, look_of, shown_name
from progressor.cli.output.output import Column, duration_text, facts, instant_text, one_line, table
from progressor.domain.jobs.roles import NodeCounts
from progressor.sdk.values.jobs import Job, JobState, Node, NodeState

NODES_SHOWN = 100
"""The maximum number of rows in a table of nodes; if there are more, they are sorted by state."""

_STATE_STYLES: Mapping[str, str] = {
    JobState.RUNNING: "green",
    JobState.DONE: "blue",
    JobState.FAILED: "bold red",
    JobState.CANCELLED: "magenta",
}


def job_facts(job: Job) -> RenderableType:
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


def vertices_of(nodes: Iterable[Node]) -> list[Vertex]:
    return [Vertex(it.name, it.state, it.after) for it in nodes]


def graph_lines(nodes: Sequence[Node], *, width: int) -> list[Text]:
    return drawing(vertices_of(nodes), width=width)


def nodes_table(nodes: Sequence[Node]) -> list[RenderableType]:
    """Return a table of nodes, and a note if some are left out."""
    shown = nodes
    if len(nodes) > NODES_SHOWN:
        rank = {state: place for place, state in enumerate(LOOKS)}
        shown = sorted(nodes, key=lambda it: rank.get(it.state, -1))[:NODES_SHOWN]
    left_out = len(nodes) - len(shown)
    note = [Text(f"… {left_out:,} more; --json prints all", style="dim")] if left_out else []
    return [table(_NODES, shown), *note]


def jobs_table(jobs: Sequence[Job]) -> RenderableType:
    return table(_JOBS, jobs) if jobs else "no jobs"


def _state_text(state: JobState) -> Text:
    return Text(state, style=_STATE_STYLES.get(state, ""))


def node_state_text(node: Node) -> Text:
    """Return the state of a node with its symbol and colour."""
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


def why_text(node: Node) -> str:
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
    "status": node_state_text,
    "at": lambda it: instant_text(_since(it)),
    "took": took_text,
    "process": lambda it: one_line(it.process_id),
    "attempt": lambda it: "" if it.attempt <= 1 else str(it.attempt),
    "why": why_text,
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
