"""Constraints in a processor's answer: taken, or named as what makes the answer invalid."""

from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from progressor.domain.processes.intent import Failed
from progressor.domain.processes.task import TaskType
from progressor.processor import codec
from progressor.v1 import processor_service_pb2 as pb
from progressor.v1 import types_pb2 as types


def answered(**fields: Any) -> codec.StepOutcome:
    response = pb.ProcessResponse(set_timer=types.SetTimer(**fields))
    return codec.decode_response(
        response.SerializeToString(), task_type=TaskType.CALL, payload_bytes_max=1000
    )


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"constraints": types.Constraints(priority=9)}, ["set_timer.constraints.priority"]),
        (
            {
                "constraints": types.Constraints(
                    order=types.Order(key="k", version="x"),
                    gates=[types.GateUse(gate="")],
                )
            },
            ["set_timer.constraints.order.version", "set_timer.constraints.gates[0].gate"],
        ),
        (
            {"constraints": types.Constraints(run_at=Timestamp(seconds=1))},
            ["set_timer.constraints.run_at"],
        ),
        ({"remove": True, "constraints": types.Constraints()}, ["set_timer.constraints"]),
    ],
)
def test_invalid_constraints_make_the_answer_invalid(
    fields: dict[str, Any], named: list[str]
) -> None:
    answer = answered(**fields)

    assert isinstance(answer, Failed)
    assert (answer.reason, answer.retryable) == ("INVALID_ANSWER", False)
    assert all(f"{name}: " in answer.message for name in named)
