"""The filter of processes, in the requests of several services."""

import re
from collections.abc import Mapping
from typing import Any

from progressor.api.calls.validation import check_id, check_namespace_name, text_of
from progressor.domain.processes.policy import REASON_BYTES_MAX
from progressor.domain.processes.process import ProcessStatus
from progressor.domain.views.filter import ProcessFilter
from progressor.v1 import types_pb2
from progressor.wire import fields as wire
from progressor.wire.shapes import UNSENT, Shape, Violations, any_of

_FAILURE_ID = re.compile("[0-9a-f]{12}")


def check_failure_id(value: str, field: str) -> None:
    if not _FAILURE_ID.fullmatch(value):
        wire.refuse(field, f"must be 12 hex digits, got {wire.shown(value)}")


def if_given(check: Any) -> Any:  # noqa: ANN401  # a check of any value
    return lambda value, field: check(value, field) if value else None


def _check_spans(values: Mapping[str, Any], path: str, _context: object) -> None:
    violations = Violations()
    for first, last in (("created_from", "created_to"), ("broken_from", "broken_to")):
        begin, end = values.get(first), values.get(last)
        if begin is not None and end is not None and begin > end:
            violations.add(f"{path}{last}", f"must not be before {first}")
    statuses = values.get("statuses")
    if statuses and ProcessStatus.ERROR not in statuses:
        names = ("failure_id", "failure_reason", "broken_from", "broken_to")
        for name in names:
            if values.get(name):
                violations.add(f"{path}{name}", "matches only processes in error: add that status")
    violations.raise_any()


FILTER = Shape(
    ProcessFilter,
    types_pb2.ProcessFilter,
    _check_spans,
    namespace=if_given(check_namespace_name),
    statuses=any_of(ProcessStatus, "statuses"),
    failure_id=if_given(check_failure_id),
    failure_reason=text_of(REASON_BYTES_MAX),
    id_prefix=if_given(check_id),
    seen=UNSENT,
)
