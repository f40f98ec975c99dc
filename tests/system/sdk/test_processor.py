"""The example in the docstring of the SDK, run as it stands."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from progressor import sdk
from progressor.v1 import processor_service_pb2 as pb
from progressor.v1 import types_pb2 as types
from progressor.v1.processor_service_pb2_grpc import ProcessorServiceStub

DEADLINE_SECONDS = 30


@pytest.fixture
def bind(tmp_path: Path) -> str:
    return f"unix:{tmp_path}/processor.sock"


@pytest.fixture
def example(tmp_path: Path, bind: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the example as a program of its own, on a socket of the test's."""
    (code,) = re.findall(r"one::\n\n((?:    .*\n|\n)+)", sdk.__doc__ or "")
    program = tmp_path / "orders.py"
    source = "\n".join(line.removeprefix("    ") for line in code.splitlines())
    assert "127.0.0.1:7421" in source
    program.write_text(source.replace("127.0.0.1:7421", bind))
    environment = {**os.environ, "PYTHONPATH": str(Path(sdk.__file__).parents[2])}
    with subprocess.Popen(  # our own
        [sys.executable, str(program)], env=environment
    ) as process:
        yield process
        process.kill()


def step(task_type: types.TaskType.ValueType, args: bytes, state: bytes) -> pb.ProcessRequest:
    return pb.ProcessRequest(
        process=types.Process(namespace="orders", process_id="order-1", aux_state=state),
        task=pb.ProcessorTask(task_id=1, type=task_type, args=args, attempt=1),
    )


def test_the_example_serves_and_leaves_on_sigterm(
    example: "subprocess.Popen[bytes]", bind: str
) -> None:
    with grpc.insecure_channel(bind) as channel:
        stub = ProcessorServiceStub(channel)
        started = stub.Process(
            step(types.TASK_TYPE_INIT, b'"tea"', b""),
            wait_for_ready=True,
            timeout=DEADLINE_SECONDS,
        )
        called = stub.Process(step(types.TASK_TYPE_CALL, b'"milk"', started.aux_state))
        rejected = stub.Process(step(types.TASK_TYPE_CALL, b"", called.aux_state))
        given_up = stub.Process(step(types.TASK_TYPE_TIMEOUT, b"", called.aux_state))
    example.send_signal(signal.SIGTERM)

    assert (started.response, started.aux_state) == (b"1", b'["tea"]')
    assert (called.response, called.aux_state) == (b"2", b'["tea","milk"]')
    assert called.set_timer.after.seconds == 24 * 60 * 60
    assert rejected.reject.message == "name an item"
    assert given_up.complete.result == b'{"abandoned":["tea","milk"]}'
    assert example.wait(timeout=DEADLINE_SECONDS) == 0
