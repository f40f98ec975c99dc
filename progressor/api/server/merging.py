"""What one request that is for all cells returns: the responses of the cells, put together."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from google.protobuf.message import Message

from progressor.api.calls import page_tokens
from progressor.v1 import process_service_pb2, replica_service_pb2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ordered:
    """A list whose items have one order over all cells, and so one kind of page token.

    Each cell returns the page that follows the same item; the first of all of them are the page.
    """

    field: str
    key: Callable[[Any], Any]
    token: Callable[[Any], str]

    def merged(self, responses: Sequence[Any]) -> Any:  # noqa: ANN401  # of the RPC
        items = [item for response in responses for item in getattr(response, self.field)]
        # Each cell has a namespace of the engine's own.
        items = sorted({self.key(item): item for item in items}.values(), key=self.key)
        size = max((len(getattr(it, self.field)) for it in responses), default=0)
        # What a cell has beyond its page comes after all of that page.
        ends = [self.key(getattr(it, self.field)[-1]) for it in responses if it.next_page_token]
        shown = [item for item in items if not ends or self.key(item) <= min(ends)][:size]
        merged: Any = type(responses[0])()
        getattr(merged, self.field).extend(shown)
        if len(shown) < len(items) or ends:
            merged.next_page_token = self.token(self.key(shown[-1]))
        return merged


def _sum(responses: Sequence[Any]) -> Message:
    return process_service_pb2.CountResponse(
        count=sum(it.count for it in responses),
        is_estimate=any(it.is_estimate for it in responses),
        namespaces=sorted(
            (counts for it in responses for counts in it.namespaces), key=lambda it: it.namespace
        ),
    )


def _activity(responses: Sequence[Any]) -> Message:
    """Put activities together; the ages of the queues are at most the oldest."""
    merged = replica_service_pb2.GetActivityResponse()
    merged.read_at.CopyFrom(
        min((it.read_at for it in responses), key=lambda it: it.ToNanoseconds())
    )
    for response in responses:
        merged.replicas.extend(response.replicas)
        merged.queues.extend(response.queues)
        merged.uncounted_namespace_count += response.uncounted_namespace_count
    merged.queues.sort(key=lambda it: it.namespace)
    if all(it.HasField("queues_age") for it in responses):
        ages = (it.queues_age for it in responses)
        merged.queues_age.CopyFrom(max(ages, key=lambda it: it.ToNanoseconds()))
    merged.exact_below = min(it.exact_below for it in responses)
    return merged


def _findings(responses: Sequence[Any]) -> Message:
    merged = replica_service_pb2.RunDoctorResponse()
    for response in responses:
        merged.examined_at.CopyFrom(response.examined_at)
        merged.findings.extend(response.findings)
    return merged


MERGED: Mapping[str, Callable[[Sequence[Any]], Message]] = MappingProxyType(
    {
        "ListNamespaces": Ordered(
            field="namespaces", key=lambda it: it.name, token=page_tokens.NAMESPACES.write
        ).merged,
        "ListReplicas": Ordered(
            field="replicas", key=lambda it: it.replica_id, token=page_tokens.REPLICAS.write
        ).merged,
        "Count": _sum,
        "GetActivity": _activity,
        "RunDoctor": _findings,
    }
)
"""How the responses of all cells become one."""

TOLERANT = frozenset({"GetActivity"})
"""Those that name the cells which are away instead of failing: an operator needs them just then."""

CHAINED = frozenset({"List", "ListFailures", "ListBulks", "ListAudit"})
"""Lists that show one cell after the other, since the order of their items is of one cell."""
