"""The audit: an entry for each request that has changed something, was denied or has failed."""

import dataclasses
import datetime as dt

DONE = "OK"
"""The result of a request that has changed something; else it is the reason of its error."""

LEFT_OUT = "LEFT_OUT"
"""The result of an entry that counts denials and failures which have none of their own."""

ANONYMOUS = "anonymous"
"""The principal of every request to an engine without access control."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """Who did what, from where and why; instants are by PostgreSQL's clock.

    ``credential``: see `Principal`. ``binding``: what allowed it. ``before`` and ``after``:
    JSON of what was changed; "": there was, or is, none. ``number`` and ``hash``: its place in the
    chain, and what proves it; 0 and "" until it is sealed.
    """

    entry_id: int
    number: int
    written_at: dt.datetime
    principal: str
    credential: str
    binding: str
    peer: str
    method: str
    namespace: str
    object_id: str
    reason: str
    result: str
    before: str
    after: str
    trace_id: str
    left_out: int
    hash: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AuditHead:
    """Both ends of the chain: the last entry that was deleted, and the last one that is sealed."""

    number: int
    hash: str
    anchor_number: int
    anchor_hash: str
    unsealed_count: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Which entries: all fields must match; those that are empty match everything."""

    since: dt.datetime | None = None
    until: dt.datetime | None = None
    principal: str = ""
    method: str = ""
    namespace: str = ""
    object_id: str = ""
    result: str = ""
