"""Names of nodes, so that a job which its leader adds to step by step is not read at every step.

Nodes are neither renamed nor taken from a job, and a leader is told by its init task from a later
one of its id: what is known stays true, and only what came after it is read.
"""

import collections
import dataclasses
from collections.abc import Mapping
from typing import Protocol

from progressor.domain.jobs.job import NODES_MAX
from progressor.domain.processes.process import Process, ProcessKey


class KnownNodes(Protocol):
    """Who has the names."""

    async def known_nodes(self, key: ProcessKey, *, after: int) -> Mapping[str, int]:
        """Return the nodes of a job above an ordinal: their ordinals by their names."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Known:
    init_task_id: int
    ordinals: dict[str, int] = dataclasses.field(default_factory=dict)
    """Without gaps, from 1 on."""


class NodeNames:
    """Where there are more than `names_max`, the least recently used jobs are forgotten."""

    def __init__(self, jobs: KnownNodes, *, names_max: int = NODES_MAX) -> None:
        self._jobs, self._names_max = jobs, names_max
        self._size = 0
        self._known: collections.OrderedDict[ProcessKey, _Known] = collections.OrderedDict()

    async def of(self, leader: Process) -> Mapping[str, int]:
        """Return the ordinals, 1 .. n, of a job's nodes by their names; none where it leads no job.

        Raises:
            StorageUnavailableError, StorageRefusedError: They cannot be read.
        """
        known = self._known.get(leader.key)
        if known is None or known.init_task_id != leader.init_task_id:
            known = _Known(leader.init_task_id)
        found = await self._jobs.known_nodes(leader.key, after=len(known.ordinals))
        self._forget(leader.key)
        known.ordinals.update(found)
        self._known[leader.key] = known
        self._size += len(known.ordinals)
        while self._size > self._names_max:
            self._forget(next(iter(self._known)))
        return known.ordinals

    def _forget(self, key: ProcessKey) -> None:
        known = self._known.pop(key, None)
        if known is not None:
            self._size -= len(known.ordinals)
