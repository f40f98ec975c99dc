"""Replicas through the clients: asked for page by page, what they do, told how much to log."""

import grpc
import pytest

from progressor.sdk import (
    Client,
    LogLevel,
    LogLevelChange,
    ReplicaState,
    StorageUnavailableError,
)
from progressor.v1 import replica_service_pb2 as pb
from tests.unit.sdk.scripted_engine import refusal, scripted_engine

SECOND = "2"
PAGES = (
    pb.ListReplicasResponse(
        replicas=[pb.Replica(replica_id=1, state=pb.REPLICA_STATE_SILENT)],
        next_page_token=SECOND,
    ),
    pb.ListReplicasResponse(replicas=[pb.Replica(replica_id=4, step_count=0)]),
)


async def test_a_client_goes_through_the_pages() -> None:
    async with scripted_engine(*PAGES) as engine, Client(engine.address) as client:
        first, second = [it async for it in client.replicas.list(page_size=1)]

    assert engine.requests == [
        pb.ListReplicasRequest(page_size=1),
        pb.ListReplicasRequest(page_size=1, page_token=SECOND),
    ]
    assert (first.replica_id, first.state, first.step_count) == (1, ReplicaState.SILENT, None)
    assert (second.replica_id, second.state) == (4, ReplicaState.UNSPECIFIED)
    assert second.step_count == 0


async def test_a_page_is_asked_for_again_where_nobody_could_be_reached() -> None:
    away = refusal(grpc.StatusCode.UNAVAILABLE, "STORAGE_UNAVAILABLE")
    async with scripted_engine(away, *PAGES) as engine, Client(engine.address) as client:
        found = [it.replica_id async for it in client.replicas.list()]

    assert found == [1, 4]


ACTIVITY = pb.GetActivityResponse(
    replicas=[pb.ReplicaActivity(replica_id=7)], uncounted_namespace_count=2
)


async def test_a_client_asks_what_goes_on_until_it_is_told() -> None:
    away = refusal(grpc.StatusCode.UNAVAILABLE, "STORAGE_UNAVAILABLE")
    async with scripted_engine(away, ACTIVITY) as engine, Client(engine.address) as client:
        activity = await client.replicas.activity()

    assert engine.requests == [pb.GetActivityRequest()] * 2
    assert [it.replica_id for it in activity.replicas] == [7]
    assert (activity.queues_age, activity.uncounted_namespace_count) == (None, 2)


def level_was(level: "pb.LogLevel.ValueType") -> pb.SetLogLevelResponse:
    return pb.SetLogLevelResponse(previous_level=level, replica_name="host-1")


async def test_a_client_changes_the_level_of_a_log_for_a_while() -> None:
    was = level_was(pb.LOG_LEVEL_INFO)
    async with scripted_engine(was) as engine, Client(engine.address) as client:
        change = await client.replicas.set_log_level(LogLevel.DEBUG, lasting=90)

    (request,) = engine.requests
    assert (request.level, request.lasting.seconds) == (pb.LOG_LEVEL_DEBUG, 90)
    assert change == LogLevelChange(replica_name="host-1", previous_level=LogLevel.INFO)


async def test_a_change_of_a_log_is_not_sent_twice() -> None:
    away = refusal(grpc.StatusCode.UNAVAILABLE, "STORAGE_UNAVAILABLE")
    async with scripted_engine(away) as engine, Client(engine.address) as client:
        with pytest.raises(StorageUnavailableError):
            await client.replicas.set_log_level(LogLevel.DEBUG)

    assert len(engine.requests) == 1
