"""Fields of lines of the log that several rooms write."""

from collections.abc import Mapping

from progressor.domain.processes.process import ProcessKey

# Behind the version and its dash, in a W3C traceparent.
_TRACE_ID = slice(3, 35)


def of_trace(context: Mapping[str, str]) -> dict[str, str]:
    """Return the trace id of a W3C context, also of one that is not traced here.

    Whoever sent it finds what became of it, though nobody exports a span. A line that is written
    within a span has that one's ids in any case.
    """
    traceparent = context.get("traceparent")
    return {} if traceparent is None else {"trace_id": traceparent[_TRACE_ID]}


def of_process(key: ProcessKey, context: Mapping[str, str]) -> dict[str, object]:
    """Return which process a line is about, and the trace id that it was written for."""
    return {"namespace": key.namespace, "process_id": key.process_id, **of_trace(context)}
