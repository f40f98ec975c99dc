"""Job clients: coroutines that submit jobs and see to them, whatever is broken."""

import asyncio
import dataclasses
import functools
import graphlib
import random
from typing import Any

from progressor import errors
from progressor.sdk import (
    Client,
    Constraints,
    Graph,
    JobState,
)
from tests.chaos.load.connections import Connections, Insistence, Notes
from tests.support.models.jobs.graphs import random_graph

JOB_CLIENTS = 3

_NODES_MAX = 14
_LOOK_SECONDS = 0.3
_LOOKS_MAX = 200
_TIMEOUT_SECONDS = 5.0
_CONSTRAINED = 0.1
_RETRIED = 0.7
_GATE = "bench"
_WHIMS = {"none": 16, "cancel": 2, "remove": 1, "remove node": 2}
_DEEDS = {"done": 70, "fail": 6, "flaky": 8, "timer": 12, "stall": 2}


@dataclasses.dataclass(slots=True)
class JobNotes:
    """Which jobs were acknowledged, and which their clients tried to remove."""

    acknowledged: set[str] = dataclasses.field(default_factory=set)
    removed: set[str] = dataclasses.field(default_factory=set)


class JobClient:
    """Submits a job, sees to it until it has ended, and goes on with the next."""

    def __init__(
        self,
        number: int,
        *,
        connections: Connections,
        notes: Notes,
        job_notes: JobNotes,
        seed: int,
    ) -> None:
        self._random = random.Random(f"{seed}:job client {number}")
        self._number, self._connections = number, connections
        self._notes, self._job_notes = notes, job_notes
        self._asker = Insistence(connections, notes, "a job client")
        self._count = 0

    async def run(self, ending: asyncio.Event) -> None:
        while not ending.is_set():
            self._count += 1
            job_id = f"j{self._number}-{self._count}"
            graph = self._graph(job_id)
            if await self._asker.insist("submit", functools.partial(_submit, job_id, graph)):
                self._job_notes.acknowledged.add(job_id)
                await self._see_to(job_id, ending)

    async def _see_to(self, job_id: str, ending: asyncio.Event) -> None:
        whim = self._random.choices(list(_WHIMS), list(_WHIMS.values()))[0]
        when = self._random.randrange(6)
        for look in range(_LOOKS_MAX):
            await asyncio.sleep(_LOOK_SECONDS)
            if ending.is_set():
                return
            if look == when and whim != "none":
                await self._indulge(whim, job_id)
            state = await self._state(job_id)
            if state is JobState.FAILED and self._random.random() < _RETRIED:
                await self._asker.insist("retry", lambda client: client.jobs.retry(job_id))
            elif job_id in self._job_notes.removed or (state is not None and state.has_ended):
                self._notes.totals["job", str(state)] += 1
                return

    async def _indulge(self, whim: str, job_id: str) -> None:
        match whim:
            case "cancel":
                await self._asker.insist(whim, lambda client: client.jobs.cancel(job_id))
            case "remove":
                self._job_notes.removed.add(job_id)
                await self._asker.insist(whim, lambda client: client.remove(job_id))
            case _:
                node = f"{job_id}/n{self._random.randrange(_NODES_MAX)}"
                await self._asker.insist(whim, lambda client: client.remove(node))

    def _graph(self, job_id: str) -> Graph:
        graph, drawn = Graph(), random_graph(self._random, _NODES_MAX)
        for name in graphlib.TopologicalSorter(drawn).static_order():
            options: dict[str, Any] = {}
            if self._random.random() < _CONSTRAINED:
                options["constraints"] = Constraints(gates={_GATE: 1})
            order = self._order(f"{job_id}/{name}")
            graph.node(name, order, after=tuple(drawn[name]), **options)
        return graph

    def _order(self, element: str) -> dict[str, Any]:
        [deed] = self._random.choices(list(_DEEDS), list(_DEEDS.values()))
        return {"id": element, "do": deed, "delay": self._random.uniform(0.0, 0.2)}

    async def _state(self, job_id: str) -> JobState | None:
        try:
            client = self._connections.another().client
            view = await client.jobs.get(job_id, payloads=False, timeout=_TIMEOUT_SECONDS)
        except errors.ProgressorError as error:
            self._asker.note("get job", error)
            return None
        return view.job.state


async def _submit(job_id: str, graph: Graph, client: Client) -> None:
    await client.jobs.submit(job_id, graph, idempotency_key=job_id)
