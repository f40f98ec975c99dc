"""The connection string by which everything finds the server that takes writes."""

import pytest
from psycopg.conninfo import conninfo_to_dict

from progressor.settings.sections import Database
from progressor.storage.postgres.writer import connection_string, insists_on_writes


def made(dsn: str) -> dict[str, object]:
    """Return the parts of the connection string made of a DSN."""
    return dict(conninfo_to_dict(connection_string(Database(), dsn, application="test")))


@pytest.mark.parametrize(
    "dsn",
    [
        "host=a,b",
        "hostaddr=127.0.0.1,127.0.0.2",
        "postgresql://a,b/name",
        "postgresql://a:1,b:2/name?connect_timeout=3",
    ],
)
def test_of_several_hosts_the_one_that_takes_writes_is_asked_for(dsn: str) -> None:
    assert made(dsn)["target_session_attrs"] == "read-write"


@pytest.mark.parametrize("dsn", ["", "host=a", "postgresql://a/name", "host=/run/postgresql"])
def test_of_one_host_libpq_is_not_asked_to_choose(dsn: str) -> None:
    assert "target_session_attrs" not in made(dsn)


def test_what_the_operator_has_written_stays() -> None:
    parts = made("host=a,b target_session_attrs=any application_name=ours connect_timeout=7")

    assert parts["target_session_attrs"] == "any"
    assert parts["application_name"] == "ours"
    assert parts["connect_timeout"] == "7"


@pytest.mark.parametrize(
    ("attribute", "insists"),
    [("", True), (" target_session_attrs=read-write", True), (" target_session_attrs=any", False)],
)
def test_only_an_operator_who_asks_for_another_gets_a_server_without_writes(
    attribute: str, *, insists: bool
) -> None:
    dsn = f"host=a,b{attribute}"

    assert insists_on_writes(dsn) is insists
    assert insists_on_writes(connection_string(Database(), dsn, application="test")) is insists
