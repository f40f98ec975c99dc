"""What a processor logs, and the span and the baggage under which a handler runs."""

import asyncio
import io
import logging
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import baggage, trace

from progressor.sdk import Processor, Step
from progressor.sdk.transport.propagation import trace_metadata, under
from progressor.v1 import processor_service_pb2 as pb
from progressor.v1 import types_pb2 as types
from tests.support.telemetry.spans import NOT_TRACED, SPAN_ID, TRACE_ID, TRACED
from tests.unit.sdk.processor.asking import answer

WAIT_SECONDS = 60


@pytest.fixture
def plain_log(root_logger: logging.Logger) -> Iterator[io.StringIO]:
    """Log as `logging.basicConfig()` has it: no field that a formatter must know."""
    stream = io.StringIO()
    root_logger.handlers[:] = []
    logging.basicConfig(stream=stream, force=True)
    yield stream
    root_logger.handlers[:] = []


def failing(error: Exception) -> Processor[Any]:
    processor: Processor[Any] = Processor("orders")

    @processor.call
    async def call(_step: Step[Any]) -> None:
        raise error

    return processor


async def ask(processor: Processor[Any], process_id: str = "order-1") -> pb.ProcessResponse:
    request = pb.ProcessRequest(
        process=types.Process(namespace="staging", process_id=process_id),
        task=pb.ProcessorTask(task_id=17, type=types.TASK_TYPE_CALL, attempt=3),
    )
    return await answer(processor, request)


async def test_a_handler_that_raises_is_shown_with_its_step_and_the_class_of_its_error(
    plain_log: io.StringIO,
) -> None:
    await ask(failing(KeyError("sku")))

    [line] = [it for it in plain_log.getvalue().splitlines() if "handler raised" in it]
    assert line.endswith(
        "handler raised KeyError: 'sku' "
        "(namespace 'staging', process 'order-1', call task 17, attempt 3)"
    )
    assert "Traceback" in plain_log.getvalue()


async def test_neither_an_error_nor_an_id_forges_a_line(plain_log: io.StringIO) -> None:
    await ask(failing(ValueError("no\nFORGED\x1b[2J")), process_id="p\nFORGED")

    before_traceback, _, _ = plain_log.getvalue().partition("Traceback")
    assert before_traceback.count("\n") == 1
    assert "\x1b" not in before_traceback


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KeyError("sku"), "KeyError: 'sku'"),
        (ValueError(), "ValueError"),
        (ValueError("no stock"), "no stock"),
    ],
)
async def test_a_failure_says_more_than_the_key_that_was_missing(
    error: Exception, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    response = await ask(failing(error))

    assert response == pb.ProcessResponse(
        failure=pb.Failure(code=2, message=message, reason=type(error).__name__)
    )
    assert caplog.records[0].__dict__["process_id"] == "order-1"


PROGRAM = """
import logging, sys
from progressor.sdk import Processor, Step, serve
{set_up}
orders, payments = Processor("orders"), Processor("payments")

@orders.init
async def init(step: Step) -> None: ...

@orders.timeout
@payments.call
async def other(step: Step) -> None: ...

serve({served}, bind="127.0.0.1:0")
"""


ONE = "serving 'orders' (init, timeout) on 127.0.0.1:"
TWO = "serving 'orders' (init, timeout), 'payments' (call) on 127.0.0.1:"


@pytest.mark.parametrize(
    ("set_up", "served", "told"),
    [
        ("", "orders", ONE),
        ("logging.basicConfig()", "orders, payments", TWO),
        ("logging.basicConfig(level='INFO')", "orders", ONE),
    ],
    ids=["no log", "warnings", "info"],
)
async def test_serve_says_once_where_it_listens_and_what_it_serves(
    tmp_path: Path, served: str, told: str, set_up: str
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.format(set_up=set_up, served=served))
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(program), stderr=subprocess.PIPE, cwd=Path(__file__).parents[4],
        env={"PYTHONPATH": "."},
    )  # fmt: skip
    assert process.stderr is not None
    async with asyncio.timeout(WAIT_SECONDS):
        line = await process.stderr.readline()
        process.terminate()
        rest = await process.stderr.read()
        code = await process.wait()

    assert told in line.decode()
    assert re.search(r":[1-9]\d*$", line.decode().strip())
    assert b"serving" not in rest
    assert code == 0


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
