"""The configuration: who wins, and what is said to whom."""

import datetime as dt
from collections.abc import Mapping
from pathlib import Path

import pytest

from progressor import errors
from progressor.domain.processes.namespace import HistoryMode
from progressor.domain.processes.policy import ZombiePolicy
from progressor.domain.processes.task import TaskType
from progressor.settings import config
from progressor.settings.decoding import SourceKind
from progressor.settings.issuers import ALGORITHMS
from progressor.settings.sections import ReplicaSettings, Telemetry, default_data_directory


def _load(
    tmp_path: Path,
    toml: str = "",
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, str] | None = None,
) -> config.Config:
    file = tmp_path / "test.toml"
    file.write_text(toml)
    return config.load(file=file, environment=environment or {}, flags=flags or {})


def test_without_any_source_every_key_has_its_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    loaded = config.load(environment={})

    assert loaded == config.Config()
    assert loaded.server.bind == ("127.0.0.1:7420",)
    assert loaded.replica.lease_timeout == dt.timedelta(seconds=5)


def test_a_stronger_source_wins_over_each_weaker_one(tmp_path: Path) -> None:
    toml = "[commit]\nbatch_max = 2\nshard_count = 3\n[scanner]\nbatch_max = 4\n"
    environment = {"PROGRESSOR_COMMIT_BATCH_MAX": "20", "PROGRESSOR_COMMIT_SHARD_COUNT": "30"}

    loaded = _load(tmp_path, toml, environment, {"commit.batch_max": "200"})

    assert loaded.commit.batch_max == 200
    assert loaded.commit.shard_count == 30
    assert loaded.scanner.batch_max == 4
    kinds = {row.key: row.source.kind for row in config.effective(loaded)}
    assert kinds["commit.batch_max"] is SourceKind.FLAG
    assert kinds["commit.shard_count"] is SourceKind.ENVIRONMENT
    assert kinds["scanner.batch_max"] is SourceKind.FILE
    assert kinds["commit.queue_max"] is SourceKind.DEFAULT


def test_the_file_is_the_one_given_else_the_variable_s_else_the_one_lying_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, count in (("progressor", 1), ("variable", 2), ("given", 3)):
        Path(f"{name}.toml").write_text(f"[commit]\nshard_count = {count}\n")
    by_variable = {"PROGRESSOR_CONFIG": "variable.toml"}

    here = config.load(environment={})
    variable = config.load(environment=by_variable)
    given = config.load(file=Path("given.toml"), environment=by_variable)

    assert [it.commit.shard_count for it in (here, variable, given)] == [1, 2, 3]


ADDRESS = "must be host:port, with a port {} to 65535, or unix:/path"
A_NAMESPACE = '[namespaces.a]\nprocessor_targets = ["h:1"]\n'
AN_ISSUER = '[access.issuers.a]\nissuer = "https://id.corp"\naudiences = ["a"]\n'
SIGNED = f'{AN_ISSUER}algorithms = ["RS256"]'
WRONG_VALUES = [
    ("server.bindd = 1", "is not a known key; did you mean server.bind?"),
    ("server = 1", "must be a table, got 1"),
    ("commit.batch_max = 0", "must be an integer from 1 to 10,000, got 0"),
    ('commit.batch_max = "5"', "must be an integer from 1 to 10,000, got '5'"),
    ("commit.batch_max = 1.5", "must be an integer from 1 to 10,000, got 1.5"),
    ("scanner.interval_seconds = nan", "must be a number of seconds from 0.01 to 3,600, got nan"),
    ("scanner.interval_seconds = inf", "must be a number of seconds from 0.01 to 3,600, got inf"),
    ("scanner.interval_seconds = true", "must be a number of seconds from 0.01 to 3,600, got True"),
    ('log.level = "loud"', "must be one of debug, info, warning, error, got 'loud'"),
    ("server.bind = [1]", "must be a list of 1 to 32 strings, got [1]"),
    ("server.bind = []", "must be a list of 1 to 32 strings, got []"),
    ('server.bind = ["7420"]', f"{ADDRESS.format(0)}, got '7420'"),
    ('server.bind = ["a:65536"]', f"{ADDRESS.format(0)}, got 'a:65536'"),
    (
        'telemetry.otlp_endpoint = "a\u00a0b:4317"',
        "must be a URL such as http://localhost:4317, got 'a\\xa0b:4317'",
    ),
    ("namespaces = 1", "must be a table, got 1"),
    ("namespaces.a = 1", "must be a table, got 1"),
    ('namespaces.a.processor_targets = ["h:0"]', f"{ADDRESS.format(1)}, got 'h:0'"),
]
"""By a key in a file: what is said of it."""


@pytest.mark.parametrize(
    ("toml", "key", "said"),
    [
        *((toml, toml.partition(" = ")[0], said) for toml, said in WRONG_VALUES),
        ("sever.bind = 1", "sever", "is not a known key; did you mean server?"),
        ('server.tls_key = "k"', "server.tls_certificate", "must be given if server.tls_key is"),
        ('server.tls_certificate = "c"', "server.tls_key", "must be given if server.tls_certi"),
        ('server.tls_client_ca = "c"', "server.tls_certificate", "must be given if server.tls_cli"),
        ('server.tls_client_ca_except = "h:1"', "server.tls_client_ca", "must be given if"),
        (
            "server.connection_age_max_seconds = 9",
            "server.connection_age_max_seconds",
            "must be 0 or at least 10, got 9",
        ),
        ("processor_credentials = 1", "processor_credentials", "must be a table"),
        ("[processor_credentials.A]", "processor_credentials.A", "must be 1 to 64 of"),
        ("[processor_credentials.a]\nx = 1", "processor_credentials.a.x", "is not a known key"),
        ('[processor_credentials.a]\nkey = "k"', "processor_credentials.a.certificate", "must be"),
        (
            '[processor_credentials.a]\ntls = false\nca = "c"',
            "processor_credentials.a.tls",
            "must be true with ca, certificate or server_name",
        ),
        (
            '[namespaces.n]\nprocessor_targets = ["h:1"]\nprocessor_credentials = "a"',
            "namespaces.n.processor_credentials",
            "must be one of those that are configured",
        ),
        ("access.issuers = 1", "access.issuers", "must be a table"),
        ("[access.issuers.A]", "access.issuers.A", "must be 1 to 64 of"),
        ("[access.issuers.a]\nx = 1", "access.issuers.a.x", "is not a known key"),
        ("[access.issuers.a]", "access.issuers.a.issuer", "must be given; access.issuers.a.aud"),
        (
            f'{AN_ISSUER}algorithms = ["RS256", "none", "HS256"]',
            "access.issuers.a.algorithms",
            f"must be some of {', '.join(ALGORITHMS)}, got 'none'; access.issuers.a.algorithms: ",
        ),
        (
            AN_ISSUER.replace("https", "http"),
            "access.issuers.a.algorithms",
            "must be given; access.issuers.a.issuer: must be an https:// URL, or http:// on this",
        ),
        (
            f"{SIGNED}\nclock_skew_seconds = 301",
            "access.issuers.a.clock_skew_seconds",
            "must be a number of seconds from 0 to 300, got 301",
        ),
        (
            f"{SIGNED}\n{SIGNED.replace('s.a', 's.b')}",
            "access.issuers.b.issuer",
            "must differ from access.issuers.a.issuer",
        ),
        (SIGNED, "access.enabled", "must be true if access.issuers"),
        (
            "replica.heartbeat_interval_seconds = 3",
            "replica.lease_timeout_seconds",
            "must be at least 2.5 times replica.heartbeat_interval_seconds, 3, got 5",
        ),
        ("[namespaces.a]", "namespaces.a.processor_targets", "must be given"),
        ("[namespaces.B]", "namespaces.B", "must be 1 to 64 of [a-z0-9._-], got 'B'"),
        (
            f"{A_NAMESPACE}retry_policy.jitter = 2",
            "namespaces.a.retry_policy.jitter",
            "must be a number from 0 to 1, got 2",
        ),
        (
            f"{A_NAMESPACE}retry_policies.remove = {{}}",
            "namespaces.a.retry_policies.remove",
            "must be one of init, call, notify, repair, timeout, join, reply, got 'remove'",
        ),
        (
            f"{A_NAMESPACE}retry_policies.call.try = 1",
            "namespaces.a.retry_policies.call.try",
            "is not a known key",
        ),
    ],
)
def test_an_error_names_its_key_and_the_value(
    tmp_path: Path, toml: str, key: str, said: str
) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        _load(tmp_path, toml)

    assert caught.value.key == key
    assert caught.value.description.replace(f" (in {tmp_path / 'test.toml'})", "").startswith(said)


def test_an_error_in_a_variable_or_a_flag_names_it(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError) as wrong:
        _load(tmp_path, environment={"PROGRESSOR_COMMIT_BATCH_MAX": "many"})
    with pytest.raises(errors.ConfigError) as unknown:
        _load(tmp_path, environment={"PROGRESSOR_COMMIT_BATCHES": "1"})
    with pytest.raises(errors.ConfigError, match=r"did you mean commit\.batch_max") as flag:
        _load(tmp_path, flags={"comit.batch_max": "1"})

    assert wrong.value.key == "commit.batch_max"
    assert "PROGRESSOR_COMMIT_BATCH_MAX" in wrong.value.description
    assert unknown.value.key == "PROGRESSOR_COMMIT_BATCHES"
    assert flag.value.key == "comit.batch_max"


def test_variables_of_others_and_of_kubernetes_services_are_no_settings(tmp_path: Path) -> None:
    environment = {
        "PROGRESSOR_ADDRESS": "127.0.0.1:1",
        "PROGRESSOR_SERVER_PORT": "tcp://10.0.0.1:7420",
        "PROGRESSOR_SERVER_PORT_7420_TCP_ADDR": "10.0.0.1",
        "PROGRESSOR_SERVER_SERVICE_HOST": "10.0.0.1",
    }

    assert _load(tmp_path, environment=environment).server == config.Config().server


@pytest.mark.parametrize("content", [b"not toml", b"\xff\xfe"])
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "broken.toml"
    file.write_bytes(content)

    with pytest.raises(errors.ConfigError, match="is not TOML") as caught:
        config.load(file=file, environment={})

    assert caught.value.key == str(file)


def test_a_file_that_is_asked_for_must_exist(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match="cannot be read: No such file"):
        config.load(file=tmp_path / "absent.toml", environment={})


def test_a_namespace_is_read_with_all_its_policies(tmp_path: Path) -> None:
    toml = """
    [namespaces.orders]
    processor_targets = ["127.0.0.1:7421", "unix:/run/orders"]
    step_timeout_seconds = 5
    history = 10
    zombie_policy = "fail"
    task_retention_seconds = 3600
    unreachable_patience_seconds = 60
    retry_policy = { attempts_max = 3, interval_max_seconds = 1 }
    retry_policies.call = { attempts_max = 1 }
    """

    (orders,) = _load(tmp_path, toml).namespaces

    assert orders.name == "orders"
    assert orders.processor_targets == ("127.0.0.1:7421", "unix:/run/orders")
    assert orders.step_timeout == dt.timedelta(seconds=5)
    assert (orders.history_mode, orders.history_last) == (HistoryMode.LAST, 10)
    assert orders.zombie_policy is ZombiePolicy.FAIL
    assert orders.task_retention == dt.timedelta(hours=1)
    assert orders.finished_process_retention is None
    assert orders.unreachable_patience == dt.timedelta(minutes=1)
    assert orders.policy_for(TaskType.INIT).attempts_max == 3
    assert orders.policy_for(TaskType.INIT).interval_max == dt.timedelta(seconds=1)
    assert orders.policy_for(TaskType.CALL).attempts_max == 1


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://user:hunter2@host/db",
        "postgresql://user:hunter2@x@host/db",
        "postgresql://host/db?user=u&password=hunter2&sslmode=require",
        "postgres://u:p@h/db?sslpassword=hunter2",
        "host=h password=hunter2 user=u",
        r"host=h password='a \' hunter2' user=u",
        "host=h password = hunter2",
        r"password=a\ hunter2 host=h",
    ],
)
def test_a_password_is_never_shown(tmp_path: Path, dsn: str) -> None:
    loaded = _load(tmp_path, flags={"database.dsn": dsn})

    shown = {row.key: row.value for row in config.effective(loaded)}["database.dsn"]

    assert "hunter2" not in str(shown)
    assert "***" in str(shown)
    assert "hunter2" not in repr(loaded)


@pytest.mark.parametrize(
    "dsn",
    [
        "hunter2",
        "password='hunter2",
        "host=h PASSWORD=hunter2",
        "host=h password=secret hunter2",
        "postgresql://u:hunter2%zz@h/db",
        "postgresql://user:hunter2/a@host/db",
        "postgresql://user:a/hunter2@host/db",
        "postgresql://u:hunter2@h:bad port/db",
        "postgresql://h/db?hunter2",
        "postgresql://u:hunter2@h:99999/db",
        "postgresql://u:hunter2@h/db?sslmode=required",
    ],
)
def test_a_malformed_dsn_is_refused_without_a_part_of_it(tmp_path: Path, dsn: str) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        _load(tmp_path, flags={"database.dsn": dsn})

    assert caught.value.key == "database.dsn"
    assert "hunter2" not in str(caught.value)


def test_a_wrong_dsn_is_not_quoted(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        _load(tmp_path, '[database]\ndsn = ["postgresql://u:hunter2@h"]\n')

    assert caught.value.key == "database.dsn"
    assert "hunter2" not in str(caught.value)


def test_data_goes_to_the_user_s_data_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    by_variable = default_data_directory()
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", "/home/u")
    by_home = default_data_directory()

    assert by_variable == Path("/data/progressor/postgres")
    assert by_home == Path("/home/u/.local/share/progressor/postgres")


def test_a_user_without_a_home_has_a_data_directory_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_home(path: Path) -> Path:
        raise RuntimeError(path)

    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.setattr(Path, "expanduser", no_home)

    assert default_data_directory().is_absolute()


def test_the_reference_explains_every_key() -> None:
    rows = {row.key: row for row in config.reference()}

    assert all(row.meaning for row in rows.values())
    assert rows["server.bind"].variable == "PROGRESSOR_SERVER_BIND"
    assert rows["server.bind"].default == "127.0.0.1:7420"
    assert rows["scanner.interval_seconds"].default == "1"
    assert "(0.01 .. 3,600 s)" in rows["scanner.interval_seconds"].meaning
    assert "namespaces.NAME.task_retention_seconds" in rows


def test_the_issuers_of_a_file_are_read_and_shown(tmp_path: Path) -> None:
    loaded = _load(tmp_path, f'access.enabled = true\n{AN_ISSUER}algorithms = ["ES256", "EdDSA"]')
    rows = {row.key: row.value for row in config.effective(loaded)}

    assert loaded.issuers["a"].clock_skew == dt.timedelta(seconds=30)
    assert rows["access.issuers.a.algorithms"] == ["ES256", "EdDSA"]
    assert rows["access.enabled"] is True


def test_every_default_of_the_reference_can_be_given(tmp_path: Path) -> None:
    elsewhere = (
        "namespaces.",
        "processor_credentials.",
        "access.issuers.",
        "cells[].",
        "database.data_directory",
        "replica.name",
    )
    flags = {
        row.key: row.default for row in config.reference() if not row.key.startswith(elsewhere)
    }

    loaded = _load(tmp_path, flags=flags)

    assert loaded.server == config.Config().server
    assert loaded.scanner == config.Config().scanner
    assert loaded.telemetry == config.Config().telemetry


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("127.0.0.1:9464+", ["127.0.0.1:9464+", "127.0.0.1:9466+"]),
        ("0.0.0.0:9464", ["0.0.0.0:9464", "0.0.0.0:9466"]),
        ("[::1]:9464", ["[::1]:9464", "[::1]:9466"]),
        ("localhost:0", ["localhost:0", "localhost:0"]),
        ("off", ["None", "None"]),
        ("", ["127.0.0.1:9464+", "127.0.0.1:9466+"]),
    ],
)
def test_the_third_process_of_an_engine_has_its_metrics_two_ports_above_the_first(
    tmp_path: Path, text: str, places: list[str]
) -> None:
    loaded = _load(tmp_path, flags={"telemetry.metrics_bind": text}).telemetry

    assert [str(loaded.metrics_at()), str(loaded.metrics_at(3))] == places


def test_a_process_without_a_port_for_its_metrics_is_refused_by_the_key() -> None:
    telemetry = Telemetry(metrics_bind="127.0.0.1:65535")

    with pytest.raises(errors.ConfigError, match="65536") as caught:
        telemetry.metrics_at(2)

    assert caught.value.key == "telemetry.metrics_bind"


def test_a_lease_of_two_and_a_half_heartbeats_is_enough() -> None:
    heartbeat = dt.timedelta(seconds=2)

    replica = ReplicaSettings(heartbeat_interval=heartbeat, lease_timeout=2.5 * heartbeat)

    assert replica.lease_timeout == dt.timedelta(seconds=5)
