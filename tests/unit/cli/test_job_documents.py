"""Job files: what they become, and how errors are reported with their place."""

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from progressor import errors
from progressor.cli.input.job_documents import JOB_FORMAT, JobDocument, deadline_of, read_job
from progressor.domain.processes.policy import RetryPolicy
from progressor.sdk.values.constraints import Constraints
from progressor.sdk.values.namespaces import ZombiePolicy

NOON = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)

Read = Callable[..., JobDocument]


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """Return what reads a text as a file of the name ``job.json``, or another one."""
    monkeypatch.chdir(tmp_path)

    def write_and_read(text: str, name: str = "job.json") -> JobDocument:
        (tmp_path / name).write_text(text)
        return read_job(name)

    return write_and_read


def test_the_example_of_the_help_is_a_job(read: Read) -> None:
    example = "\n".join(line for line in JOB_FORMAT.splitlines() if line.startswith("  "))

    job = read(example, "job.toml")

    build, deploy = job.graph
    assert (job.job_id, job.deadline) == ("release-7", dt.timedelta(hours=2))
    assert (job.context, job.metadata) == ({"user": "u"}, {"team": "core"})
    assert (build.name, build.args, build.after) == ("build", b'{"ref":"main"}', ())
    assert deploy.after == ("build",)
    assert deploy.options == {
        "wants_results": True,
        "namespace": "deployments",
        "process_id": "deploy-7",
        "target": "host-3:7500",
        "zombie_policy": ZombiePolicy.FAIL,
        "constraints": Constraints(
            gates={"db": 1}, order=("db", "1.10"), run_at=NOON, priority=1, hold="process"
        ),
        "retry_policy": RetryPolicy(
            attempts_max=3,
            initial_interval=dt.timedelta(seconds=1),
            interval_max=dt.timedelta(minutes=1),
            elapsed_max=dt.timedelta(hours=1),
            coefficient=2,
            jitter=0.2,
            non_retryable_reasons=("BAD_CARD",),
        ),
    }


@pytest.mark.parametrize(
    ("node", "args"),
    [
        ("{}", b""),
        ('{"args": 12345678901234567890.10}', b"12345678901234567890.10"),
        ('{"args": null}', b"null"),
        ('{"args_text": "plain"}', b"plain"),
        ('{"args_base64": "AP8="}', b"\x00\xff"),
    ],
)
def test_args_are_json_as_it_stands_or_a_text_or_bytes(node: str, args: bytes, read: Read) -> None:
    [found] = read(f'{{"nodes": {{"a": {node}}}}}').graph

    assert found.args == args


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "job.json: is not JSON: Expecting property name enclosed in double quotes: line 1"),
        ("[1]", "job.json: expected `object`, got `array`"),
        ('{"nodes": {}}', "job.json: nodes: must have at least one node"),
        ("{}", "job.json: nodes: must be given"),
        ('{"nodes": 1}', "job.json: nodes: expected `object`, got `int`"),
        ('{"nodes": {"a": {}, "a": {}}}', "job.json: is not JSON: duplicate key 'a'"),
        ('{"nodes": {"a": {"args": NaN}}}', "job.json: is not JSON: NaN is not a JSON number"),
        ('{"nodes": {"a": {}}, "node": 1}', "job.json: node: unknown key"),
        ('{"nodes": {"a b": {"x": 1}}}', 'job.json: nodes."a b".x: unknown key'),
        ('{"nodes": {"a": {"after": "b"}}}', "nodes.a.after: expected `array`, got `str`"),
        ('{"nodes": {"a": {"after": ["b", 1]}}}', "nodes.a.after[1]: expected `str`, got `int`"),
        ('{"nodes": {"a": {"after": ["b"]}}}', "nodes.a.after[0]: 'b' is not a node of the file"),
        (
            '{"nodes": {"a": {"after": ["b"]}, "b": {"after": ["c"]}, "c": {"after": ["b"]}}}',
            "nodes.b.after[0]: forms a cycle: b after c after b",
        ),
        ('{"nodes": {"a": {"after": ["a"]}}}', "nodes.a.after[0]: forms a cycle: a after a"),
        ('{"nodes": {"": {}}}', 'nodes."": '),
        (
            '{"nodes": {"a": {"args": 1, "args_text": ""}}}',
            "nodes.a.args_text: cannot be combined with args",
        ),
        ('{"nodes": {"a": {"args_base64": "*"}}}', "nodes.a.args_base64: "),
        (
            '{"nodes": {"a": {"retry": {"jitter": ""}}}}',
            "nodes.a.retry.jitter: expected `float | null`",
        ),
        (
            '{"nodes": {"a": {"retry": {"interval_max": "1 x"}}}}',
            "retry.interval_max: must be a duration such as 30s",
        ),
        ('{"nodes": {"a": {"zombie_policy": "x"}}}', "nodes.a.zombie_policy: invalid enum value"),
        (
            '{"nodes": {"a": {"constraints": {"order": "x"}}}}',
            "nodes.a.constraints.order: must be KEY=VERSION, got 'x'",
        ),
        ('{"nodes": {"a": {"constraints": {"gates": ["=1"]}}}}', "nodes.a.constraints.gates: "),
        ('{"nodes": {"a": {"constraints": {"run_at": "x"}}}}', "nodes.a.constraints.run_at: "),
        (
            '{"nodes": {"a": {}}, "deadline": "soon"}',
            "deadline: must be a duration such as 2h or an instant",
        ),
        ('{"nodes": {"a": {}}, "context": {"a": 1}}', "job.json: context[...]: expected `str`"),
        (
            '{"nodes": {"a": {"constraints": {"priority": 9999999999}}}}',
            "nodes.a.constraints.priority: expected `int` <= 2147483647",
        ),
        (
            '{"nodes": {"a": {"retry": {"attempts_max": 9999999999}}}}',
            "nodes.a.retry.attempts_max: expected `int` <= 2147483647",
        ),
        (
            '{"nodes": {"a": {"constraints": {"run_at": "0001-01-01T00:00:00+05:00"}}}}',
            "nodes.a.constraints.run_at: must be an instant",
        ),
        (
            '{"nodes": {"a": {}}, "deadline": 1e300}',
            "deadline: must be a duration such as 2h or an instant",
        ),
        (
            '{"nodes": {"a": {}}, "deadline": "9999-12-31T23:59:59-05:00"}',
            "deadline: must be a duration such as 2h or an instant",
        ),
        (
            '{"nodes": {"a": {}}, "metadata": {"a": [9007199254740993]}}',
            "metadata: a[0]: an integer beyond 2**53 would be rounded",
        ),
        (
            f'{{"nodes": {{"a": {{}}}}, "metadata": {{"a": {"[" * 600}{"]" * 600}}}}}',
            "metadata: must not be nested deeper than 30",
        ),
        ("a = \n", "job.toml: is not TOML: Invalid value (at line 1"),
        ("a = nan", "job.toml: is not TOML: "),
        ("a = 1\na = 2", "job.toml: is not TOML: Cannot overwrite a value"),
        ("[nodes.a]\nafter = 1979-05-27", "job.toml: nodes.a.after: expected `array`, got `str`"),
    ],
)
def test_an_error_is_reported_with_its_place(text: str, said: str, read: Read) -> None:
    with pytest.raises(errors.InvalidRequestError) as caught:
        read(text, "job.toml" if said.startswith("job.toml") else "job.json")

    assert said in str(caught.value)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(errors.InvalidRequestError, match=r"FILE: cannot read nowhere\.json"):
        read_job("nowhere.json")


@pytest.mark.parametrize(
    ("value", "deadline"),
    [
        ("90s", dt.timedelta(seconds=90)),
        ("1h30m", dt.timedelta(minutes=90)),
        (1.5, dt.timedelta(seconds=1.5)),
        ("2026-01-31T12:00:00Z", NOON),
        ("2026-01-31T13:00:00+01:00", NOON),
        ("2026-01-31T12:00:00", NOON),
    ],
)
def test_a_deadline_is_a_duration_or_an_instant(value: Any, deadline: object) -> None:
    assert deadline_of(value) == deadline


@pytest.mark.parametrize(
    ("nodes", "sent"),
    [
        ('"build": {}, "deploy": {"after": ["build"]}, "lint": {}', ["build", "deploy", "lint"]),
        ('"c": {"after": ["a"]}, "b": {}, "a": {}', ["a", "c", "b"]),
        ('"a": {}, "b": {"after": ["a", "a"]}', ["a", "b"]),
    ],
    ids=["in order", "a predecessor later", "a predecessor twice"],
)
def test_nodes_stay_in_the_order_of_the_file_where_it_is_possible(
    read: Read, nodes: str, sent: list[str]
) -> None:
    assert [it.name for it in read(f'{{"nodes": {{{nodes}}}}}').graph] == sent
