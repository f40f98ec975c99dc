"""Namespaces as a file: what is written is read back, and what is wrong is named."""

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from progressor import errors
from progressor.api.namespaces import create_from_wire
from progressor.cli.namespaces.files import Change, changes, short_table, toml_of
from progressor.cli.namespaces.namespaces import config_from, config_of, table_of
from progressor.sdk import NamespaceConfig, RetryPolicy
from progressor.sdk.values.namespaces import namespace_to_wire
from progressor.settings.config import load_namespaces
from progressor.settings.decoding import keys_of
from progressor.settings.namespaces import NamespaceTable, QuotaTable, RetryTable
from progressor.v1 import namespace_service_pb2 as pb

EVERY_KEY = r"""
[namespaces."orders.eu"]
processor_targets = ["10.0.0.1:7421", "unix:/run/orders \"a\".sock"]
step_timeout_seconds = 0.25
exhausted_call_fails_alone = true
on_error = "cancel"
zombie_policy = "fail"
worker_count_max = 7
history = 3
finished_process_retention_seconds = 86400
task_retention_seconds = 0
payload_bytes_max = 1000
waiting_callers_max = 5
unreachable_patience_seconds = 60.5
step_timeout_max_seconds = 7200
processor_credentials = "internal"
turn_max = 64
cell = "north"

[namespaces."orders.eu".retry_policy]
initial_interval_seconds = 1
coefficient = 1.5
interval_max_seconds = 10
jitter = 0
attempts_max = 3
elapsed_max_seconds = 100
non_retryable_reasons = ["NO \\ MONEY", "STOLÉN"]

[namespaces."orders.eu".retry_policies.call]

[namespaces."orders.eu".retry_policies.init]
attempts_max = 1

[namespaces."orders.eu".quotas]
starts_per_second = 100
calls_per_second = 200
timers_per_second = 300
open_processes = 400
bytes_per_second = 500

[namespaces.plain]
processor_targets = ["h:1"]
"""


A = '[namespaces.a]\nprocessor_targets = ["h:1"]\n'


def read(directory: Path, text: str) -> list[NamespaceConfig]:
    file = directory / "namespaces.toml"
    file.write_text(text, newline="")
    return [config_of(it) for it in load_namespaces(file.read_bytes(), str(file))]


def test_every_key_is_written_as_it_is_read(tmp_path: Path) -> None:
    orders, plain = read(tmp_path, EVERY_KEY)

    written = toml_of([orders, plain])

    assert set(short_table(orders)) == {key.name for key in keys_of(NamespaceTable)}
    assert set(table_of(orders)["retry_policy"]) == {key.name for key in keys_of(RetryTable)}  # type: ignore[call-overload]  # a table of a file
    assert written.split() == EVERY_KEY.split()
    assert read(tmp_path, written) == [orders, plain]


@given(reasons=st.lists(st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1)))
def test_any_text_is_written_on_printable_lines_and_read_back(
    tmp_path_factory: pytest.TempPathFactory, reasons: list[str]
) -> None:
    policy = RetryPolicy(non_retryable_reasons=tuple(reasons))
    config = NamespaceConfig(name="a", processor_targets=("h:1",), retry_policy=policy)

    written = toml_of([config])

    assert all(line.isprintable() for line in written.split("\n"))
    assert read(tmp_path_factory.getbasetemp(), written) == [config]


def bounds() -> Iterator[str]:
    for prefix, table in (
        ("", NamespaceTable),
        ("retry_policy.", RetryTable),
        ("quotas.", QuotaTable),
    ):
        for key in keys_of(table):
            for bound in (key.bounds.ge, key.bounds.le):
                if bound is not None:
                    yield f"{prefix}{key.name}={bound}"
    yield "history=1"
    yield "history=100000"


@pytest.mark.parametrize("setting", [*bounds()])
def test_the_engine_accepts_what_a_file_may_say(setting: str) -> None:
    config = config_from("orders", targets=["h:1"], texts=[setting])
    request = pb.CreateNamespaceRequest(namespace=namespace_to_wire(config))

    assert config_of(create_from_wire(request)) == config


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ("[server]\nworkers = 2", None, "must have a table [namespaces.NAME]"),
        ("[namespace.a]", "namespace", "is not a known key; did you mean namespaces?"),
        ("[namespaces.a]", "namespaces.a.processor_targets", "must be given"),
        ("[namespaces.A]", "namespaces.A", "must be 1 to 64 of [a-z0-9._-], got 'A'"),
        (
            '[namespaces.a]\nprocessor_targets = ["unix:here"]',
            "namespaces.a.processor_targets",
            "must be host:port or unix:/path, got 'unix:here'",
        ),
        (
            f"{A}[namespaces.b]\nhistoy = 1",
            "namespaces.b.histoy",
            "is not a known key; did you mean namespaces.b.history?",
        ),
        (
            f"{A}retry_policies.call.attempts_max = 0",
            "namespaces.a.retry_policies.call.attempts_max",
            "must be an integer from 1 to 1,000,000, got 0",
        ),
        (
            f'{A}retry_policy.non_retryable_reasons = ["{"x" * 257}"]',
            "namespaces.a.retry_policy.non_retryable_reasons",
            "must be a list of 0 to 100 strings of at most 256 bytes, got one of 257 bytes",
        ),
    ],
)
def test_what_is_wrong_is_named_with_file_and_key(
    tmp_path: Path, text: str, key: str | None, said: str
) -> None:
    with pytest.raises(errors.ConfigError) as caught:
        read(tmp_path, text)

    file = str(tmp_path / "namespaces.toml")
    assert caught.value.key == (key or file)
    assert file in str(caught.value)
    assert caught.value.description.replace(f" (in {file})", "").startswith(said)


def test_all_that_is_wrong_is_named_at_once(tmp_path: Path) -> None:
    wrong = f"""{A}histoy = 1
        step_timeout_seconds = "long"
        retry_policies.timer.attempts_max = 1
        retry_policies.call.attempts_max = 0
        [namespaces.b]
        processor_targets = ["h", "unix:here"]
        [namespaces.c]
    """

    with pytest.raises(errors.ConfigError) as caught:
        read(tmp_path, wrong)

    named = [
        it.partition(": ")[0].removeprefix("namespaces.") for it in str(caught.value).split("; ")
    ]
    assert [it for it in named if not it.startswith("did you mean")] == [
        "a.histoy", "a.step_timeout_seconds", "a.retry_policies.timer",
        "a.retry_policies.call.attempts_max", "b.processor_targets", "b.processor_targets",
        "c.processor_targets",
    ]  # fmt: skip


def test_a_file_of_an_editor_of_windows_is_read(tmp_path: Path) -> None:
    crlf = A.replace("\n", "\r\n")
    assert read(tmp_path, f"\ufeff{crlf}") == read(tmp_path, A)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{A}{A}", "table [namespaces.a] is declared twice (at line 3, column 14)"),
        (f"{A}history = 1\nhistory = 2\n", "a key is given twice (at line 4, column 12)"),
    ],
)
def test_what_is_there_twice_is_named_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(
        errors.ConfigError, match=re.escape(f"namespaces.toml: is not TOML: {said}")
    ):
        read(tmp_path, text)


def test_tables_are_compared_key_by_key_and_policies_of_types_as_a_whole() -> None:
    before = NamespaceConfig(name="a", processor_targets=("h:1",))
    after = dataclasses.replace(
        before,
        retry_policy=RetryPolicy(attempts_max=3),
        retry_policies={"call": RetryPolicy()},
        history_last=0,
    )

    found = {it.key: it for it in changes(table_of(before), table_of(after))}

    assert set(found) == {"retry_policy.attempts_max", "retry_policies.call", "history"}
    assert found["history"] == Change(key="history", before="all", after="none")
    assert found["retry_policies.call"].before is None
