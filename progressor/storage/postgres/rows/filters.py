"""Filters of processes as ``priv/functions/queries/filter_conditions.sql`` takes them."""

import dataclasses
from typing import Any

import msgspec
from psycopg.types.json import Jsonb

from progressor.domain.views.bulk import OPERATIONS
from progressor.domain.views.filter import ProcessFilter

EXAMINED_MAX = 50_000
"""Processes that PostgreSQL examines at once for a filter that no index has."""

_encode = msgspec.json.Encoder().encode


def filter_document(processes: ProcessFilter) -> Jsonb:
    """Return a filter as JSON, without the fields that match everything.

    The engine's own processes match only if their namespace is named.
    """
    but = {} if processes.namespace else {"but_namespace": OPERATIONS}
    return Jsonb(fields_of(processes) | but, dumps=_encode)


def fields_of(processes: ProcessFilter) -> dict[str, Any]:
    fields = {it.name: getattr(processes, it.name) for it in dataclasses.fields(processes)}
    # Nothing may be seen if that is empty.
    return {name: it for name, it in fields.items() if it or (name == "seen" and it is not None)}
