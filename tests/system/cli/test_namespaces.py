"""Namespaces on the command line: the keys of the configuration file, as messages."""

from progressor.v1 import namespace_service_pb2
from tests.support.api.scripted_engine import Cli, ScriptedEngine


def test_a_namespace_is_created_from_the_keys_of_the_configuration(
    engine: ScriptedEngine, cli: Cli
) -> None:
    ended = cli(
        *("namespace", "create", "orders", "--target", "127.0.0.1:7421"),
        *("--set", "step_timeout_seconds=5", "--set", "retry_policies.call.attempts_max=3"),
        *("--set", "history=none"),
    )

    assert ended.code == 0
    created = engine.requests[0].namespace
    assert list(created.processor_targets) == ["127.0.0.1:7421"]
    assert created.step_timeout.seconds == 5
    assert created.retry_policies["call"].attempts_max == 3
    assert created.history.none


def test_an_update_of_a_namespace_changes_what_is_given_and_no_more(
    engine: ScriptedEngine, cli: Cli
) -> None:
    stored = namespace_service_pb2.Namespace(
        name="orders", processor_targets=["h:1"], worker_count_max=5, payload_bytes_max=10,
        waiting_callers_max=1, revision=4, zombie_policy=namespace_service_pb2.ZOMBIE_POLICY_FAIL,
    )  # fmt: skip
    stored.step_timeout.FromSeconds(30)
    for policy in (stored.retry_policy, stored.retry_policies["call"]):
        policy.initial_interval.FromSeconds(1)
        policy.interval_max.FromSeconds(9)
        policy.coefficient, policy.attempts_max = 2, 8
    engine.answers["GetNamespace"] = namespace_service_pb2.GetNamespaceResponse(namespace=stored)

    cli("namespace", "update", "orders", "--set", "retry_policy.attempts_max=3")

    request = engine.requests[-1]
    assert list(request.update_mask.paths) == ["retry_policy"]
    assert request.namespace.retry_policy.attempts_max == 3
    assert request.namespace.retry_policy.interval_max.seconds == 9
    assert request.expected_revision == 4


def test_namespaces_are_read_and_deleted(engine: ScriptedEngine, cli: Cli) -> None:
    engine.answers["ListNamespaces"] = namespace_service_pb2.ListNamespacesResponse(
        namespaces=[namespace_service_pb2.Namespace(name="orders")]
    )

    assert cli("namespace", "list", "--json").document["namespaces"][0]["name"] == "orders"
    assert cli("namespace", "get", "orders").code == 0
    assert cli("namespace", "delete", "orders").out == "deleted namespace orders\n"
