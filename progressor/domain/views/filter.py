"""Which processes List, Count and operations on many processes are about."""

import dataclasses
import datetime as dt
from collections.abc import Mapping

from progressor.domain.processes.process import ProcessStatus


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFilter:
    """Matches processes that match each field; a field with its default matches all.

    ``namespace`` "" is all of them but the engine's own, OPERATIONS; of these only those in
    ``seen``, unless that is None. The spans contain their first
    instant and not their last. ``failure_id`` is a group of failures, ``broken_from``
    and ``broken_to`` the time of breaking: like ``failure_reason``, they match only processes in
    error.
    """

    namespace: str = ""
    statuses: tuple[ProcessStatus, ...] = ()
    created_from: dt.datetime | None = None
    created_to: dt.datetime | None = None
    metadata: Mapping[str, object] | None = None
    failure_id: str = ""
    failure_reason: str = ""
    broken_from: dt.datetime | None = None
    broken_to: dt.datetime | None = None
    id_prefix: str = ""
    seen: tuple[str, ...] | None = None


EVERYTHING = ProcessFilter()
