"""What several workers need before they are started: a number, a port, connections."""

import json
import os

import pytest

from progressor.cli.engine.supervisor import count_of
from progressor.cli.main import main
from progressor.settings.config import Config
from progressor.settings.sections import Database
from progressor.storage.embedded.capacity import room_for


def test_no_workers_means_one_for_each_core() -> None:
    assert count_of(0) == len(os.sched_getaffinity(0))
    assert [count_of(workers) for workers in (1, 2, 7)] == [1, 2, 7]
    assert count_of(Config().server.workers) == 1


def test_a_replica_may_have_as_many_connections_as_the_readme_says() -> None:
    assert Database().connections_max == 19


@pytest.mark.parametrize(("replicas", "settings"), [(4, {}), (5, {"max_connections": "108"})])
def test_an_embedded_postgresql_has_room_for_all_replicas(
    replicas: int, settings: dict[str, str]
) -> None:
    assert room_for(replicas * Database().connections_max) == settings


@pytest.mark.parametrize(
    "arguments",
    [
        ("config", "--workers", "2", "--bind", "unix:/tmp/absent.sock"),
        ("config", "--workers", "0", "--bind", "127.0.0.1:0,unix:/tmp/absent.sock"),
        ("config", "--workers", "-1"),
        ("config", "--workers", "257"),
        ("dev", "--workers", "2", "--once"),
    ],
)
def test_workers_that_cannot_be_are_refused_by_their_key(
    capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    assert main([*arguments, "--json"] if arguments[0] == "config" else [*arguments]) == 2

    err = capfd.readouterr().err
    assert "server.workers" in err


def test_the_flag_is_the_key(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--workers", "3", "--json"]) == 0

    rows = {row["key"]: row for row in json.loads(capfd.readouterr().out)["settings"]}
    assert rows["server.workers"]["value"] == 3
    assert rows["server.workers"]["source"]["kind"] == "flag"
