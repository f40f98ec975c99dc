"""What a processor says on its own account: lines that a plain logging set-up shows whole."""

import asyncio
import io
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from progressor.sdk import Processor, Step
from progressor.v1 import processor_service_pb2 as pb
from progressor.v1 import types_pb2 as types
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
