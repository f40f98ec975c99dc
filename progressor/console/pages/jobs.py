"""The jobs of a namespace, and one job: its graph, and a table of its nodes."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from progressor.console.actions import jobs
from progressor.console.actions.action import invalid
from progressor.console.pages.page import Page, namespace_of
from progressor.console.rendering.graphs import drawing_of
from progressor.console.rendering.looks import in_order
from progressor.console.visits.visit import Ask
from progressor.console.words.words import mark
from progressor.domain.jobs.roles import NodeCounts
from progressor.domain.views.graph_layout import Vertex, depths, stem
from progressor.sdk.codec.codecs import Typed
from progressor.sdk.transport.exchange import Exchange
from progressor.sdk.values.jobs import JobState, Node, NodeState, read_job, read_node
from progressor.v1 import job_service_pb2 as pb

_PAGE_SIZE = 50
NODES_SHOWN = 50

STATES = tuple(JobState)[1:]


async def _load_list(ask: Ask) -> Mapping[str, Any]:
    namespace, namespaces = await namespace_of(ask)
    listing = ask.client.jobs.list(
        states=_states(ask),
        schedule_id=ask.one("schedule"),
        page_size=_PAGE_SIZE,
        namespace=namespace,
    )
    found, following = await listing.page(ask.one("page"))
    return {
        "jobs": [(it, counts_of(it.counts)) for it in found],
        "following": following,
        "namespace": namespace,
        "namespaces": namespaces,
        "states": STATES,
    }


async def _load_job(ask: Ask) -> Mapping[str, Any]:
    wanted, after = _node_filter(ask), _after(ask)
    request = pb.GetJobRequest(
        namespace=ask.place["namespace"], job_id=ask.name, without_payloads=True
    )
    # Read here, and not by `Jobs.get`: of a large job, most nodes are neither drawn nor listed.
    asking = Exchange(request, _as_it_is, None, repeatable=True)
    message = await ask.client.jobs.connection.send(asking)
    # In a thread, so that other visitors do not wait for a job of 50,000 nodes.
    return await asyncio.to_thread(_facts_of, message, Typed(ask.client.jobs.codec), wanted, after)


def _as_it_is(message: pb.GetJobResponse) -> pb.GetJobResponse:
    return message


def _facts_of(
    message: pb.GetJobResponse, context: Typed, wanted: Mapping[str, Any], after: int
) -> Mapping[str, Any]:
    def node_at(place: int) -> Node[Any]:
        return read_node(message.nodes[place], context=context)

    states = tuple(NodeState)
    vertices = [
        Vertex(it.name, states[it.state if it.state < len(states) else 0], tuple(it.predecessors))
        for it in message.nodes
    ]
    places = {it.name: place for place, it in enumerate(vertices)}
    job = read_job(message.job)
    found = [*_matching(vertices, **wanted)]
    following = [place for place in found if place > after]
    shown = following[:NODES_SHOWN]
    return {
        "job": job,
        "counts": counts_of(job.counts),
        "drawing": drawing_of(vertices, lambda name: node_at(places[name])),
        "nodes": [(place, node_at(place)) for place in shown],
        "match_count": len(found),
        "following": shown[-1] if len(following) > len(shown) else None,
        "is_first": after < 0,
        "wanted": wanted,
        "is_filtered": any(it is not None for it in wanted.values()),
    }


def counts_of(counts: NodeCounts) -> tuple[tuple[NodeState, int], ...]:
    """Return the states that nodes are in and how many of them, in the order of looks."""
    return in_order(Counter({it: getattr(counts, it, 0) for it in NodeState}))


def _states(ask: Ask) -> list[JobState]:
    found = []
    for text in ask.query.get("state", ()):
        if text not in STATES:
            raise invalid("state", f"must be one of {', '.join(STATES)}, got {text!r}")
        found.append(JobState(text))
    return found


def _node_filter(ask: Ask) -> dict[str, Any]:
    """Return which nodes the table shows, by the parameters of the address."""
    state, known = ask.one("state"), tuple(NodeState)[1:]
    if state and state not in known:
        raise invalid("state", f"must be one of {', '.join(known)}, got {state!r}")
    return {
        "state": NodeState(state) if state else None,
        "name": ask.one("node") or None,
        "layer": _whole(ask, "layer"),
    }


def _after(ask: Ask) -> int:
    after = _whole(ask, "after")
    return -1 if after is None else after


def _whole(ask: Ask, name: str) -> int | None:
    text = ask.one(name)
    if text and not (text.isascii() and text.isdecimal() and len(text) <= len("999999")):
        raise invalid(name, f"must be a whole number, got {text!r}")
    return int(text) if text else None


def _matching(
    nodes: Sequence[Vertex], *, state: NodeState | None, name: str | None, layer: int | None
) -> list[int]:
    """Return the numbers of the nodes that match; `name` with # also matches any digits there."""
    layers: Sequence[int | None] = [None] * len(nodes) if layer is None else _layers(nodes)
    return [
        place
        for place, it in enumerate(nodes)
        if (state is None or it.state == state)
        and (name is None or name in {it.name, stem(it.name)})
        and layers[place] == layer
    ]


def _layers(nodes: Sequence[Vertex]) -> list[int]:
    number = {it.name: place for place, it in enumerate(nodes)}
    return depths([[number[name] for name in it.predecessors] for it in nodes])


LIST = Page(
    path="/jobs",
    template="jobs/list.html",
    section="jobs",
    title=mark("Jobs"),
    load=_load_list,
)
JOB = Page(
    path="/jobs/{namespace}/{name:path}",
    template="jobs/job.html",
    section="jobs",
    title=mark("Job"),
    load=_load_job,
    actions=jobs.ACTIONS,
)
