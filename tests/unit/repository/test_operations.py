"""The dashboard, the alerts and the runbook name what there is, and say what to do."""

import contextlib
import dataclasses
import itertools
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from cyclopts.exceptions import MissingArgumentError

from progressor.cli.doctor import _RUNBOOK
from progressor.cli.main import build_app
from progressor.settings import config
from progressor.storage.doctor.environment import checks as environment
from progressor.storage.doctor.invariants import checks as invariants
from progressor.telemetry.instruments import Distribution, Family, Metric, MetricKind
from progressor.telemetry.metrics.prometheus import exposed
from progressor.telemetry.metrics.registry import METRICS

OTHERS: Mapping[str, frozenset[str]] = {
    "up": frozenset(),
    "ALERTS": frozenset({"alertname", "alertstate", "severity", "namespace"}),
    "process_cpu_seconds_total": frozenset(),
    "process_resident_memory_bytes": frozenset(),
}
"""Series that others make, with their labels."""

ADDED = frozenset({"job", "instance"})
"""Labels that Prometheus adds to what it reads."""

_STRING = re.compile(r'"[^"]*"')
_SELECTOR = re.compile(r"\b([a-zA-Z_][\w:]*)\s*\{([^}]*)\}")
_LABEL = re.compile(r"([a-zA-Z_]\w*)\s*(?:=~|!~|!=|=)")
_GROUPED = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")
_RANGE = re.compile(r"\[[^\]]*\]")
_NAME = re.compile(r"(?<![\w.$:])[a-zA-Z_][\w:]*+(?!\s*\()")
_WORDS = frozenset({"or", "and", "unless", "offset", "by"})


@dataclasses.dataclass(frozen=True, slots=True)
class Query:
    """The series that are asked for, the labels of their matchers, and of each group as written."""

    names: frozenset[str]
    matched: Mapping[str, frozenset[str]]
    groups: tuple[frozenset[str], ...]

    @property
    def grouped(self) -> frozenset[str]:
        return frozenset[str]().union(*self.groups)

    def faults(self, known: Mapping[str, frozenset[str]]) -> Iterator[str]:
        """Yield what is asked for and not among `known`, which are labels by series."""
        for name in sorted(self.names):
            if name not in known:
                yield f"unknown metric {name}"
                continue
            labels = known[name] | ADDED
            for label in sorted(self.matched.get(name, frozenset()) - labels):
                yield f"{name} has no label {label} to match"
            for label in sorted(self.grouped - labels):
                yield f"{name} has no label {label} to group by"


def query(expression: str) -> Query:
    bare = _STRING.sub('""', expression)
    matched: dict[str, frozenset[str]] = {}
    for name, matchers in _SELECTOR.findall(bare):
        matched[name] = matched.get(name, frozenset()) | frozenset(_LABEL.findall(matchers))
    groups = tuple(
        frozenset(label.strip() for label in labels.split(",")) for labels in _GROUPED.findall(bare)
    )
    rest = _RANGE.sub("", _GROUPED.sub("", _SELECTOR.sub(r"\1", bare)))
    return Query(frozenset(_NAME.findall(rest)) - _WORDS, matched, groups)


def series() -> dict[str, frozenset[str]]:
    """Return the labels of each series that Prometheus can read from an engine, and of others."""
    found = dict(OTHERS)
    for metric in METRICS.values():
        for sample in exposed(_family(metric)).samples:
            found[sample.name] = frozenset(sample.labels)
    return found


def metric_of(name: str) -> str:
    """Return the name of the metric that a series belongs to."""
    names = {metric.name for metric in METRICS.values()}
    return name if name in names else re.sub(r"_(total|bucket|sum|count)$", "", name)


def _family(metric: Metric) -> Family:
    value: float | Distribution = 1.0
    if metric.kind is MetricKind.HISTOGRAM:
        value = Distribution((1,) * (len(metric.bounds) + 1), 1.0)
    return Family(metric, {metric.labels: value})


ROOT = Path(__file__).parents[3]
HOW_TO = ROOT / "docs/how-to"
RUNBOOK = HOW_TO / "operate/runbook"
DOCKER = ROOT / "docker"
DASHBOARD = json.loads((DOCKER / "grafana/dashboards/progressor.json").read_text("utf-8"))
PANELS = [each for each in DASHBOARD["panels"] if each["type"] != "row"]
ALL_RULES = [
    rule
    for group in yaml.safe_load((DOCKER / "prometheus/rules.yml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
]
RULES = [rule for rule in ALL_RULES if "alert" in rule]
RECORDED = [rule for rule in ALL_RULES if "record" in rule]
KNOWN = series() | {rule["record"]: query(rule["expr"]).groups[0] for rule in RECORDED}
RULE_TESTS = [
    each
    for file in sorted((DOCKER / "prometheus").glob("rules*_test.yml"))
    for each in yaml.safe_load(file.read_text("utf-8"))["tests"]
]

PAGE = (ROOT / "docs/reference/alerts.md").read_text("utf-8")
CHECKS = [each.name for each in (*environment.CHECKS, *invariants.checks(deep=True))]

_LEGEND = re.compile(r"\{\{\s*(\w+)\s*\}\}")
_COMMAND = re.compile(r"`(progressor [^`]+)`")
_LABEL_VALUES = re.compile(r"^label_values\((\w+), (\w+)\)$")
_TEMPLATE = re.compile(r"\{\{.*?\}\}")


def queries_of_the_dashboard() -> Iterator[tuple[str, str]]:
    """Yield where a query stands, and the query."""
    for panel in PANELS:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for annotation in DASHBOARD["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = _LABEL_VALUES.findall(variable["definition"])[0]
            yield variable["name"], f"max by ({label}) ({metric})"


@pytest.mark.parametrize(("place", "expression"), [*queries_of_the_dashboard()])
def test_a_query_of_the_dashboard_asks_for_what_there_is(place: str, expression: str) -> None:
    asked = query(expression)

    assert asked.names, place
    assert [*asked.faults(series())] == [], place


def test_every_metric_is_drawn_somewhere() -> None:
    names = itertools.chain.from_iterable(
        query(asked).names for _, asked in queries_of_the_dashboard()
    )

    assert {metric.name for metric in METRICS.values()} - {*map(metric_of, names)} == set()


def test_what_a_legend_names_is_what_the_query_groups_by() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            groups = query(target["expr"]).groups
            is_one = "sum(" in target["expr"] or panel["type"] == "stat"
            kept = groups[0] if groups else frozenset[str]() if is_one else {"instance"}
            assert {*_LEGEND.findall(target["legendFormat"])} == kept - {"le"}, target


@pytest.mark.parametrize("rule", RULES, ids=lambda each: each["alert"])
class TestAnAlert:
    def test_asks_for_what_there_is(self, rule: dict[str, Any]) -> None:
        asked = query(rule["expr"])

        assert asked.names
        assert [*asked.faults(KNOWN)] == []

    def test_says_how_bad_it_is_and_for_whom(self, rule: dict[str, Any]) -> None:
        summary = rule["annotations"]["summary"]
        labels = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))

        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert len(_TEMPLATE.sub("", summary)) <= 100
        assert labels <= query(rule["expr"]).grouped | {"instance"}

    def test_names_a_command_that_helps_and_that_there_is(self, rule: dict[str, Any]) -> None:
        commands = _COMMAND.findall(rule["annotations"]["description"])

        assert commands
        for command in commands:
            _, *tokens = _TEMPLATE.sub("orders", command).split()
            build_app().parse_args(
                _completed(tokens), exit_on_error=False, print_error=False, verbose=False
            )

    def test_is_documented_with_its_severity(self, rule: dict[str, Any]) -> None:
        assert f"| `{rule['alert']}` | {rule['labels']['severity']} |" in PAGE

    def test_is_tested_where_it_fires_and_where_it_does_not(self, rule: dict[str, Any]) -> None:
        counts = [
            len(case["exp_samples"])
            for test in RULE_TESTS
            for case in test.get("promql_expr_test", ())
            if f'"{rule["alert"]}"' in case["expr"]
        ]

        assert 0 in counts
        assert any(counts)


@pytest.mark.parametrize("rule", RECORDED, ids=lambda each: each["record"])
def test_what_is_recorded_is_of_what_there_is_and_named_by_its_labels(rule: dict[str, Any]) -> None:
    asked = query(rule["expr"])
    labels, metric, operation = rule["record"].split(":")

    assert [*asked.faults(series())] == []
    assert {*labels.split("_")} == asked.groups[0]
    assert all(name.startswith(metric) for name in asked.names)
    assert f"[{operation.removeprefix('increase')}]" in rule["expr"]


def _completed(tokens: list[str]) -> list[str]:
    """Return a command with the id of a process where it is named without one."""
    return [*tokens, "1"] if tokens in (["repair"], ["simple-repair"]) else tokens


def test_the_alerts_are_tested_with_series_that_there_are() -> None:
    known = series()
    for test in RULE_TESTS:
        for given in test["input_series"]:
            assert [*query(given["series"]).faults(known)] == []


def test_no_alert_has_the_name_of_another() -> None:
    names = [rule["alert"] for rule in RULES]

    assert len(set(names)) == len(names)
    assert all(name.startswith("Progressor") for name in names)


_SECTION = re.compile(r"^## (.+)\n\n((?:(?!## ).*\n)+)", re.MULTILINE)
_SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(?<!`)`([^`]+)`")
# Two words or more, in small letters but for the name of PostgreSQL.
_MESSAGE = re.compile(r"(?:[a-z]+|PostgreSQL)(?:[:;]? [a-z']+)+")
_OTHER = {
    "archive recovery complete", "bulk list", "bulk remove", "bulk terminate", "make image",
    "make run", "schedule get", "scheme: https",
}  # fmt: skip
_SHELL_SYNTAX = {"|", ">", "<", "&&", ";", "\\"}

SECTIONS = [
    (page, title, text)
    for page in sorted(RUNBOOK.glob("*.md"))
    if page.name != "index.md"
    for title, text in _SECTION.findall(page.read_text("utf-8"))
]
QUERIES = sorted(
    {
        " ".join(span.split())
        for _, _, text in SECTIONS
        for span in _SPAN.findall(text)
        if span.startswith("SELECT ") and "pg_terminate" not in span and "pg_drop" not in span
    }
)


def commands(page: Path) -> list[str]:
    """Return the commands of `progressor` on a page, from blocks and from the text."""
    text = page.read_text("utf-8")
    blocks = [block.replace("\\\n", " ") for block in _SHELL.findall(text)]
    lines = [line for block in blocks for line in block.splitlines()]
    spans = [" ".join(span.split()) for span in _SPAN.findall(text)]
    return [each for each in (*lines, *spans) if each.startswith("progressor ") and "…" not in each]


def test_each_alert_and_each_check_has_one_section() -> None:
    titles = [title for _, title, _ in SECTIONS]

    expected = [rule["alert"] for rule in RULES] + [check.replace("_", " ") for check in CHECKS]
    assert sorted(titles) == sorted(expected)


def test_doctor_prints_an_index_that_leads_to_the_section_of_each_check() -> None:
    index = (ROOT / _RUNBOOK).read_text("utf-8")
    rows = dict(re.findall(r"^\| \[[^]]+\]\((\S+)\) \| .*\| (.*) \|$", index, re.MULTILINE))
    pages = {title.replace(" ", "_"): page.name for page, title, _ in SECTIONS}

    for check in environment.CHECKS:
        listed = rows[pages[check.name]]
        assert check.group in listed or check.name.replace("_", " ") in listed, check.name
    subjects = {pages[check.name] for check in invariants.checks(deep=True)}
    assert subjects == {page for page, listed in rows.items() if "invariants" in listed}


@pytest.mark.parametrize(("page", "title", "text"), SECTIONS, ids=lambda each: str(each)[:40])
def test_a_section_says_what_it_means_and_what_to_check_and_to_do(
    page: Path, title: str, text: str
) -> None:
    labels = re.findall(r"^\*\*(\w+)\.\*\* ", text, re.MULTILINE)

    assert labels == ["Meaning", "Check", "Action"], f"{page.name}: {title}"
    assert "`" in text.partition("**Check.**")[2], "names nothing to look at"


@pytest.mark.parametrize("rule", RULES, ids=lambda each: each["alert"])
def test_an_alert_names_its_section(rule: dict[str, Any]) -> None:
    path, _, anchor = rule["annotations"]["runbook"].partition("#")

    assert anchor == rule["alert"].lower()
    assert f"\n## {rule['alert']}\n" in (ROOT / path).read_text("utf-8")


@pytest.mark.parametrize("page", sorted(HOW_TO.rglob("*.md")), ids=lambda each: each.stem)
def test_every_command_of_a_guide_exists(page: Path) -> None:
    app = build_app()
    for command in commands(page):
        _, *tokens = shlex.split(command)
        end = next((at for at, token in enumerate(tokens) if token in _SHELL_SYNTAX), len(tokens))
        # In the text a command may be named without its arguments.
        is_name = all(re.fullmatch(r"[a-z-]+", token) for token in tokens)
        with contextlib.suppress(*([MissingArgumentError] if is_name else [])):
            app.parse_args(tokens[:end], exit_on_error=False, print_error=False, verbose=False)


def test_every_key_of_a_guide_exists() -> None:
    text = "\n".join(page.read_text("utf-8") for page in HOW_TO.rglob("*.md"))
    rows = config.reference()
    sections = {row.key.partition(".")[0] for row in rows}

    keys = {
        each for each in re.findall(r"`([a-z_]+\.[a-z_]+)`", text) if each.split(".")[0] in sections
    }

    assert keys - {row.key for row in rows} == set()


def test_every_log_message_of_a_guide_is_in_the_code() -> None:
    source = "\n".join(path.read_text("utf-8") for path in (ROOT / "progressor").rglob("*.py"))
    text = "\n".join(page.read_text("utf-8") for page in HOW_TO.rglob("*.md"))
    spans = {" ".join(each.split()) for each in _SPAN.findall(text)}
    messages = {
        span for span in spans if _MESSAGE.fullmatch(span) and not span.startswith("progressor ")
    }

    assert messages
    names = {check.replace("_", " ") for check in CHECKS}
    assert {message for message in messages if message not in source} <= names | _OTHER


def test_every_query_of_the_runbook_runs(own_database: str) -> None:
    with psycopg.connect(own_database, autocommit=True) as connection:
        for query in QUERIES:
            connection.execute(query.encode())
