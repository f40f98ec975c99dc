"""Replicas on the command line: a table for people, a document for programs."""

import pytest

from progressor.cli.main import main
from progressor.v1 import replica_service_pb2 as pb
from tests.support.api.scripted_engine import Cli, ScriptedEngine


@pytest.fixture
def two(engine: ScriptedEngine) -> None:
    """Have the engine tell of a replica that is busy, and of a dead one of another release."""
    busy = pb.Replica(
        replica_id=7, name="host-1", version="1.2.3", functions="progressor_1",
        state=pb.REPLICA_STATE_DRAINING, draining=True, step_count=1200, caller_count=0,
        lease_count=1199,
    )  # fmt: skip
    busy.heartbeat_age.FromMilliseconds(420)
    busy.lease_timeout.FromSeconds(5)
    busy.clock_offset.FromMilliseconds(-1234)
    dead = pb.Replica(replica_id=4, name="host-2", version="1.0", state=pb.REPLICA_STATE_SILENT)
    dead.heartbeat_age.FromSeconds(3000)
    engine.answers["ListReplicas"] = pb.ListReplicasResponse(replicas=[dead, busy])


@pytest.mark.usefixtures("two")
def test_a_table_shows_each_with_its_state_and_load(cli: Cli) -> None:
    ended = cli("replicas")

    heads, dead, busy = (line.split() for line in ended.out.splitlines())
    assert ended.code == 0
    assert heads == [
        "name", "id", "version", "state", "heartbeat", "steps", "callers", "leases", "clock",
    ]  # fmt: skip
    assert dead == ["host-2", "4", "1.0", "silent", "3,000.0", "s", "ago", "0"]
    assert busy == [
        "host-1", "7", "1.2.3", "draining", "0.4", "s", "ago", "1,200", "0", "1,199", "-1.234", "s",
    ]  # fmt: skip


@pytest.mark.usefixtures("two")
def test_a_document_has_every_field(cli: Cli) -> None:
    dead, busy = cli("replicas", "--json").document["replicas"]

    assert busy == {
        "replica_id": 7,
        "name": "host-1",
        "version": "1.2.3",
        "state": "draining",
        "functions": "progressor_1",
        "started_at": "1970-01-01T00:00:00+00:00",
        "heartbeat_at": "1970-01-01T00:00:00+00:00",
        "heartbeat_age_seconds": 0.42,
        "lease_timeout_seconds": 5.0,
        "draining": True,
        "step_count": 1200,
        "caller_count": 0,
        "clock_offset_seconds": -1.234,
        "lease_count": 1199,
    }
    # What is not known is null, a duration under its plain name.
    assert (dead["step_count"], dead["caller_count"], dead["clock_offset"]) == (None, None, None)


def test_an_engine_that_is_not_there_is_an_exit_code(capfd: pytest.CaptureFixture[str]) -> None:
    code = main(["replicas", "--json", "--address", "unix:/nonexistent/engine.sock"])

    assert code == 5
    assert capfd.readouterr().out == ""
