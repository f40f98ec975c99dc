"""Replicas through the clients: asked for page by page."""

import asyncio

import grpc

from progressor.sdk import Client, ReplicaState, SyncClient
from progressor.v1 import replica_service_pb2 as pb
from tests.unit.test_sdk_engine import refusal, scripted_engine

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
        first, second = [it async for it in client.list_replicas(page_size=1)]

    assert engine.requests == [
        pb.ListReplicasRequest(page_size=1),
        pb.ListReplicasRequest(page_size=1, page_token=SECOND),
    ]
    assert (first.replica_id, first.state, first.step_count) == (1, ReplicaState.SILENT, None)
    assert (second.replica_id, second.state) == (4, ReplicaState.UNSPECIFIED)
    assert second.step_count == 0


async def test_the_blocking_client_does_so_too() -> None:
    async with scripted_engine(*PAGES) as engine:
        with SyncClient(engine.address) as client:
            found = await asyncio.to_thread(lambda: [*client.list_replicas()])

    assert [it.replica_id for it in found] == [1, 4]


async def test_a_page_is_asked_for_again_where_nobody_could_be_reached() -> None:
    away = refusal(grpc.StatusCode.UNAVAILABLE, "STORAGE_UNAVAILABLE")
    async with scripted_engine(away, *PAGES) as engine, Client(engine.address) as client:
        found = [it.replica_id async for it in client.list_replicas()]

    assert found == [1, 4]
