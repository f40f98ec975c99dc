"""Namespaces through the clients: both ways without a loss."""

import dataclasses
import datetime as dt

import pytest

from progressor.sdk import Client, NamespaceConfig, RetryPolicy, ZombiePolicy
from progressor.sdk.values.namespaces import namespace_from_wire, namespace_to_wire
from progressor.v1 import namespace_service_pb2 as pb
from tests.unit.sdk.scripted_engine import scripted_engine

SECOND = "2"
FULL = NamespaceConfig(
    name="orders",
    processor_targets=("127.0.0.1:7421", "unix:/run/p.sock"),
    step_timeout=dt.timedelta(seconds=3, microseconds=5),
    retry_policy=RetryPolicy(jitter=0.0, elapsed_max=dt.timedelta(hours=1)),
    retry_policies={"call": RetryPolicy(attempts_max=1, non_retryable_reasons=("NO_STOCK",))},
    exhausted_call_fails_alone=True,
    zombie_policy=ZombiePolicy.FAIL,
    worker_count_max=10,
    history_last=50,
    finished_process_retention=dt.timedelta(days=30),
    task_retention=dt.timedelta(days=7),
    payload_bytes_max=1024,
    waiting_callers_max=5,
    target_patience=dt.timedelta(minutes=1),
)
PLAIN = NamespaceConfig(name="plain", processor_targets=("127.0.0.1:7421",))


@pytest.mark.parametrize(
    "config",
    [FULL, PLAIN, dataclasses.replace(PLAIN, history_last=0)],
)
def test_a_namespace_comes_back_as_it_was_sent(config: NamespaceConfig) -> None:
    assert namespace_from_wire(namespace_to_wire(config)) == config


async def test_create_returns_what_the_engine_keeps() -> None:
    kept = namespace_to_wire(FULL)
    kept.revision = 1
    kept.created_at.FromJsonString("2026-03-01T12:00:00Z")
    answer = pb.CreateNamespaceResponse(namespace=kept)
    async with scripted_engine(answer) as engine, Client(engine.address) as client:
        created = await client.namespaces.create(FULL)

    assert engine.requests == [pb.CreateNamespaceRequest(namespace=namespace_to_wire(FULL))]
    assert created.revision == 1
    assert created.created_at == dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


async def test_update_masks_what_is_named() -> None:
    answer = pb.UpdateNamespaceResponse(namespace=namespace_to_wire(FULL))
    async with scripted_engine(answer, answer) as engine, Client(engine.address) as client:
        await client.namespaces.update(
            FULL, fields=("step_timeout", "history_last"), expected_revision=4
        )
        await client.namespaces.update(FULL)

    named, whole = engine.requests
    assert list(named.update_mask.paths) == ["step_timeout", "history"]
    assert named.expected_revision == 4
    fields = {field.name for field in pb.Namespace.DESCRIPTOR.fields}
    assert set(whole.update_mask.paths) == fields - {
        "name",
        "created_at",
        "updated_at",
        "revision",
    }


async def test_update_refuses_a_field_that_does_not_exist() -> None:
    async with Client("unix:/nonexistent") as client:
        with pytest.raises(ValueError, match="cannot update field 'revision'"):
            await client.namespaces.update(FULL, fields=("revision",))


async def test_get_list_and_delete() -> None:
    message = namespace_to_wire(FULL)
    script = (
        pb.GetNamespaceResponse(namespace=message),
        pb.ListNamespacesResponse(namespaces=[message], next_page_token=SECOND),
        pb.ListNamespacesResponse(namespaces=[namespace_to_wire(PLAIN)]),
        pb.DeleteNamespaceResponse(),
    )
    async with scripted_engine(*script) as engine, Client(engine.address) as client:
        got = await client.namespaces.get("orders")
        listed = [namespace.name async for namespace in client.namespaces.list(page_size=1)]
        await client.namespaces.delete("orders")

    assert got == FULL
    assert listed == ["orders", "plain"]
    assert engine.requests[-1] == pb.DeleteNamespaceRequest(name="orders")


def test_the_zombie_policies_are_those_of_the_wire() -> None:
    assert {f"ZOMBIE_POLICY_{it.name}": it.number for it in ZombiePolicy} == dict(
        pb.ZombiePolicy.items()
    )
