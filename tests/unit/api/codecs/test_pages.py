"""Pages of the lists: each leads to the next by a token, which no other list takes."""

import datetime as dt
import functools
from typing import Any

import pytest

from progressor.api import gates, jobs, namespaces, replicas
from progressor.api.calls import page_tokens
from progressor.api.schedules import servicer as schedules
from progressor.domain.gates.gate import Gate
from progressor.domain.processes.namespace import Namespace
from progressor.v1 import gate_service_pb2 as gates_pb
from progressor.v1 import job_service_pb2 as jobs_pb
from progressor.v1 import namespace_service_pb2 as namespaces_pb
from progressor.v1 import replica_service_pb2 as replicas_pb
from progressor.v1 import schedule_service_pb2 as schedules_pb
from tests.support.api.memory import make_job
from tests.support.builders import make_replica_view
from tests.unit.api.codecs.test_requests import fields_of
from tests.unit.api.codecs.test_schedules import a_schedule

NOON = dt.datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)
IDS = ("a", "b\u00e9", "c")


def a_gate(gate: str) -> Gate:
    return Gate(
        namespace="orders", gate=gate, capacity=2, held=3, waiting_count=7, revision=4,
        created_at=NOON, updated_at=NOON,
    )  # fmt: skip


LISTS: dict[str, tuple[Any, ...]] = {
    "gates": (
        gates.page_to_wire, gates.list_from_wire, gates_pb.ListGatesRequest,
        [a_gate(it) for it in IDS], "b\u00e9",
    ),
    "namespaces": (
        namespaces.page_to_wire, namespaces.list_from_wire, namespaces_pb.ListNamespacesRequest,
        [Namespace(name=it, processor_targets=("a:1",)) for it in "abc"], "b",
    ),
    "replicas": (
        replicas.page_to_wire, replicas.list_from_wire, replicas_pb.ListReplicasRequest,
        [make_replica_view(replica_id=it) for it in (3, 5, 8)], 5,
    ),
    "schedules": (
        schedules.page_to_wire, schedules.list_from_wire, schedules_pb.ListSchedulesRequest,
        [a_schedule()] * 3, "nightly",
    ),
    "jobs": (
        jobs.list_to_wire, jobs.list_from_wire, jobs_pb.ListJobsRequest,
        [make_job(it, created_at=NOON) for it in IDS], (NOON, "b\u00e9"),
    ),
}  # fmt: skip
GARBLED = {
    "no base64": "?",
    "no text": "_w",
    "no letter": "Zw",
    "too long": "x" * 2000,
    "of tasks": page_tokens.TASKS.write(7),
    **{f"{it}, with a NUL": page_tokens.encode(it, "\0") for it in "gnrsj"},
    "of replicas, too large": page_tokens.REPLICAS.write(2**63),
}


def asked(kind: Any, **fields: Any) -> Any:
    namespaced = "namespace" in kind.DESCRIPTOR.fields_by_name
    return kind(**{"namespace": "orders"} if namespaced else {}, **fields)


@pytest.mark.parametrize("name", LISTS)
def test_a_page_leads_to_the_next_and_the_last_to_none(name: str) -> None:
    write, read, kind, items, key = LISTS[name]

    page = write(tuple(items), page_size=2)
    following = read(asked(kind, page_token=page.next_page_token))

    assert len(getattr(page, name)) == 2
    assert (following.after, following.limit) == (key, 100)
    assert not write(tuple(items), page_size=3).next_page_token


@pytest.mark.parametrize("token", GARBLED.values(), ids=GARBLED.keys())
@pytest.mark.parametrize("name", LISTS)
def test_a_token_of_no_page_is_refused_with_a_size_out_of_bounds(name: str, token: str) -> None:
    _, read, kind, _, _ = LISTS[name]

    for size in (-1, 1001):
        message = asked(kind, page_token=token, page_size=size)
        assert sorted(fields_of(functools.partial(read, message))) == ["page_size", "page_token"]


@pytest.mark.parametrize("job_id", ["a", "a/b", "\u00e9" * 128, "\U0001f9ea" * 64, "x" * 256])
def test_every_job_has_a_token_that_comes_back(job_id: str) -> None:
    key = (NOON, job_id)

    assert page_tokens.JOBS.read(page_tokens.JOBS.write(key)) == key


def test_a_list_of_replicas_has_a_hundred_unless_told_otherwise() -> None:
    assert replicas.list_from_wire(asked(replicas_pb.ListReplicasRequest)).limit == 100
