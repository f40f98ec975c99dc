"""Settings of an embedded server: full durability, and no access for other users."""

import socket
import stat
from collections.abc import Mapping
from pathlib import Path

import psycopg
import pytest

from progressor import errors
from progressor.storage.embedded.server import EmbeddedPostgres
from tests.support.postgres.embedded import put_row, setting


@pytest.mark.parametrize(
    "settings",
    [
        {"fsync": "off"},
        {"FSYNC": "no"},
        {"synchronous_commit": "off"},
        {"synchronous-commit": "local"},
        {"full_page_writes": "false"},
    ],
)
def test_settings_that_give_up_durability_are_refused(
    data: Path, settings: Mapping[str, str]
) -> None:
    with pytest.raises(errors.EmbeddedPostgresError, match="durable=False"):
        EmbeddedPostgres(data_directory=data, settings=settings)


@pytest.mark.parametrize(
    "name", ["hba_file", "listen_addresses", "port", "unix-socket_permissions"]
)
def test_settings_that_open_the_server_are_refused(data: Path, name: str) -> None:
    with pytest.raises(errors.EmbeddedPostgresError, match="launcher's own"):
        EmbeddedPostgres(data_directory=data, settings={name: "x"})


def test_a_setting_with_a_malformed_name_is_refused(data: Path) -> None:
    with pytest.raises(errors.EmbeddedPostgresError, match="not the name"):
        EmbeddedPostgres(data_directory=data, settings={"jit=on -c fsync": "off"})


def test_settings_reach_the_server_and_durability_is_full(made: Path) -> None:
    settings = {"work_mem": "12MB"}
    with EmbeddedPostgres(data_directory=made, settings=settings) as server:
        names = ("work_mem", "fsync", "synchronous_commit", "full_page_writes", "jit")
        values = [setting(server.conninfo, name) for name in names]

    assert values == ["12MB", "on", "on", "on", "off"]


def test_alter_system_cannot_turn_durability_off(made: Path) -> None:
    server = EmbeddedPostgres(data_directory=made)
    with server, psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET fsync = off")

    with server:
        assert setting(server.conninfo, "fsync") == "on"


def test_tcp_asks_for_the_password(data: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with EmbeddedPostgres(data_directory=data, port=port) as server:
        put_row(server.tcp_conninfo)
        for wrong in ("password=wrong", "passfile=/dev/null"):
            stranger = f"host=127.0.0.1 port={port} user=postgres dbname=postgres {wrong}"
            with pytest.raises(psycopg.OperationalError, match="password"):
                psycopg.connect(stranger)
        mode = (data / "password").stat().st_mode

    assert stat.S_IMODE(mode) == 0o600


def test_without_a_port_there_is_no_tcp(made: Path) -> None:
    with EmbeddedPostgres(data_directory=made) as server:
        assert setting(server.conninfo, "listen_addresses") == ""
        with pytest.raises(errors.EmbeddedPostgresError, match="no TCP port"):
            _ = server.tcp_conninfo


def test_an_outgrown_log_is_cut(data: Path) -> None:
    data.mkdir()
    (data / "server.log").write_bytes(b"old news\n" * 1_000_000)

    with EmbeddedPostgres(data_directory=data):
        assert (data / "server.log").stat().st_size < 100_000

    assert (data / "server.log.1").stat().st_size < 5_000_000
