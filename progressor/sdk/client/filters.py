"""The filter of processes, as options of the requests that take one."""

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Unpack

from progressor.sdk.client.resource import RequestOptions
from progressor.sdk.codec.codecs import Payload
from progressor.sdk.codec.wire import instant_to_wire, object_to_wire, optional
from progressor.sdk.values.processes import ProcessStatus
from progressor.v1 import types_pb2


class FilterOptions(RequestOptions, total=False):
    """Options of the requests about many processes: those that match all of them.

    ``all_namespaces``: of all namespaces but ``progressor.operations``, which has to be named.
    ``statuses``: in one of these. ``created_from``, ``created_to``: created at or after, before an
    instant. ``metadata``: their metadata contains all of this. ``failure_id``: broken, of this
    group of failures. ``failure_reason``: a failure with this reason broke them. ``broken_from``,
    ``broken_to``: they broke at or after, before an instant, and are still in error.
    ``id_prefix``: their id begins with this.
    """

    all_namespaces: bool
    statuses: Sequence[ProcessStatus]
    created_from: dt.datetime | None
    created_to: dt.datetime | None
    metadata: Mapping[str, Payload] | None
    failure_id: str
    failure_reason: str
    broken_from: dt.datetime | None
    broken_to: dt.datetime | None
    id_prefix: str


def filter_to_wire(
    own_namespace: str, /, **options: Unpack[FilterOptions]
) -> types_pb2.ProcessFilter:
    """Return the filter of a request; `own_namespace` is the client's. The timeout is left out."""
    everywhere = options.get("all_namespaces", False)
    return types_pb2.ProcessFilter(
        namespace="" if everywhere else options.get("namespace") or own_namespace,
        statuses=[it.number for it in options.get("statuses", ())],
        created_from=optional(instant_to_wire, options.get("created_from")),
        created_to=optional(instant_to_wire, options.get("created_to")),
        metadata=optional(object_to_wire, options.get("metadata")),
        failure_id=options.get("failure_id", ""),
        failure_reason=options.get("failure_reason", ""),
        broken_from=optional(instant_to_wire, options.get("broken_from")),
        broken_to=optional(instant_to_wire, options.get("broken_to")),
        id_prefix=options.get("id_prefix", ""),
    )
