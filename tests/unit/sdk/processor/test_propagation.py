"""Traces across the wire: a handler runs under the span of its step."""

import logging
from collections.abc import Mapping
from typing import Any

import pytest
from opentelemetry import baggage, trace

from progressor.sdk import Step
from progressor.sdk.transport.propagation import trace_metadata, under
from tests.support.telemetry.spans import NOT_TRACED, SPAN_ID, TRACE_ID, TRACED
from tests.unit.sdk.processor.asking import answer


def current() -> trace.SpanContext:
    return trace.get_current_span().get_span_context()


def said_by(span: trace.SpanContext) -> dict[str, str]:
    """Return what a handler answers that saw a span."""
    return {
        "trace_id": trace.format_trace_id(span.trace_id),
        "span_id": trace.format_span_id(span.span_id),
        "sampled": str(bool(span.trace_flags.sampled)),
    }


def plain(_step: Step[Any]) -> dict[str, str]:
    return said_by(current())


async def in_the_loop(_step: Step[Any]) -> dict[str, str]:
    return said_by(current())


@pytest.mark.parametrize("handler", [plain, in_the_loop])
@pytest.mark.parametrize(("caller", "sampled"), [(TRACED, "True"), (NOT_TRACED, "False")])
async def test_a_handler_sees_the_span_of_its_step(
    handler: Any, caller: Mapping[str, str], sampled: str
) -> None:
    response = (await answer(handler, trace_context=caller)).response

    for expected in (TRACE_ID, SPAN_ID, sampled):
        assert f'"{expected}"'.encode() in response
    assert not current().is_valid


async def test_a_bug_of_a_handler_is_logged_under_the_span_of_its_step(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[int] = []

    async def handler(_step: Step[Any]) -> None:
        raise KeyError

    def note(_record: logging.LogRecord) -> bool:
        seen.append(current().trace_id)
        return True

    caplog.handler.addFilter(note)
    try:
        await answer(handler, trace_context=TRACED)
    finally:
        caplog.handler.removeFilter(note)

    assert seen == [int(TRACE_ID, 16)]


def test_a_request_carries_the_current_span_by_w3c_whatever_else_is_spoken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("opentelemetry.propagate.get_global_textmap", lambda: None)
    with under(TRACED):
        carried = trace_metadata()

    assert carried == tuple(TRACED.items())
    assert trace_metadata() is None


async def test_a_handler_sees_the_baggage_of_the_caller() -> None:
    async def handler(_step: Step[Any]) -> dict[str, object]:
        return dict(baggage.get_all())

    for trace_context in ({**TRACED, "baggage": "tenant=acme"}, {"baggage": "tenant=acme"}):
        answered = await answer(handler, trace_context=trace_context)
        assert answered.response == b'{"tenant":"acme"}'
    assert not baggage.get_all()


@pytest.mark.parametrize("caller", [{}, TRACED])
def test_a_request_carries_the_current_baggage_with_a_span_or_without(
    caller: dict[str, str],
) -> None:
    sent = {**caller, "baggage": "tenant=acme"}
    with under(sent):
        assert dict(trace_metadata() or ()) == sent
