"""Requests of GateService: violations by field; gates and pages in answers."""

import dataclasses
import datetime as dt

import pytest

from progressor.api import gates as gate_codec
from progressor.api.calls import page_tokens
from progressor.domain.gates.gate import Gate
from progressor.v1 import gate_service_pb2 as pb
from tests.unit.api.codecs.test_processes import fields_of

NOON = dt.datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)
GATE = Gate(
    namespace="orders",
    gate="db-1",
    capacity=2,
    held=3,
    waiting_count=7,
    revision=4,
    created_at=NOON,
    updated_at=NOON,
)


def test_all_violations_of_a_gate_are_reported_together() -> None:
    message = pb.SetGateRequest(namespace="Orders", gate="a\n", expected_revision=-1)

    assert fields_of(lambda: gate_codec.set_from_wire(message)) == [
        "namespace",
        "gate",
        "capacity",
        "expected_revision",
    ]


def test_a_page_ends_in_the_token_of_the_next() -> None:
    gates = tuple(dataclasses.replace(GATE, gate=key) for key in ("a", "b", "c\u00e9"))

    cut = gate_codec.page_to_wire(gates, page_size=2)
    whole = gate_codec.page_to_wire(gates, page_size=3)

    assert [it.gate for it in cut.gates] == ["a", "b"]
    assert whole.next_page_token == ""
    message = pb.ListGatesRequest(namespace="orders", page_token=cut.next_page_token)
    assert gate_codec.list_from_wire(message) == page_tokens.Listing(
        namespace="orders", after="b", limit=100
    )


@pytest.mark.parametrize(
    "token", ["?", "Zw", page_tokens.NAMESPACES.write("orders"), page_tokens.GATES.write("\0")]
)
def test_an_invalid_page_token_of_gates_is_refused(token: str) -> None:
    message = pb.ListGatesRequest(namespace="orders", page_token=token, page_size=1001)

    assert fields_of(lambda: gate_codec.list_from_wire(message)) == ["page_token", "page_size"]
