"""Log fields that several packages use."""

from collections.abc import Mapping

from progressor.domain.processes.process import ProcessKey

# In a W3C traceparent, after the version and its dash.
_TRACE_ID = slice(3, 35)


def of_trace(context: Mapping[str, str]) -> dict[str, str]:
    """Return the trace id of a W3C context, also if it is not traced here.

    So its sender finds the log lines even if no span is exported. A line written within a span has
    that span's ids anyway.
    """
    traceparent = context.get("traceparent")
    return {} if traceparent is None else {"trace_id": traceparent[_TRACE_ID]}


def of_process(key: ProcessKey, context: Mapping[str, str]) -> dict[str, object]:
    return {"namespace": key.namespace, "process_id": key.process_id, **of_trace(context)}
