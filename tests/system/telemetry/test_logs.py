"""What an engine writes into its log: each change of its state, and no payload."""

import dataclasses
import logging

import pytest

from progressor.sdk import NamespaceConfig
from tests.support.engine.replica import (
    Env,
    Replica,
    answering,
    broken,
    refusal,
    timer,
    unavailable,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET = b"not-for-the-log"


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [it.getMessage() for it in caplog.records if it.name.startswith("progressor.")]


async def test_no_line_has_a_payload_at_any_level(
    env: Env, caplog: pytest.LogCaptureFixture
) -> None:
    words = SECRET.decode()
    with caplog.at_level(logging.DEBUG):
        await env.running(
            "p",
            answering(SECRET, response=SECRET, aux_state=SECRET, set_timer=timer(3600)),
            unavailable(words),
            broken(words),
            answering(SECRET, response=SECRET),
        )
        await env.client.call("p", SECRET, context={"key": words}, idempotency_key="once")
        await refusal(env.client.call("p", SECRET))
        await env.client.repair("p", SECRET)
        await env.client.remove("p")

    assert caplog.records
    assert [it for it in caplog.records if words in f"{it.getMessage()} {vars(it)}"] == []


async def test_changes_of_namespaces_are_told_with_their_names(
    replica: Replica, env: Env, caplog: pytest.LogCaptureFixture
) -> None:
    assert replica.address
    config = NamespaceConfig(name="short-lived", processor_targets=("127.0.0.1:1",))
    with caplog.at_level(logging.INFO):
        created = await env.client.namespaces.create(config)
        await env.client.namespaces.update(dataclasses.replace(created, worker_count_max=2))
        await env.client.namespaces.delete(created.name)

    told = [
        (it.getMessage(), vars(it)["namespace"])
        for it in caplog.records
        if it.getMessage().startswith("namespace ")
    ]
    assert told == [
        ("namespace created", "short-lived"),
        ("namespace changed", "short-lived"),
        ("namespace deleted", "short-lived"),
    ]
