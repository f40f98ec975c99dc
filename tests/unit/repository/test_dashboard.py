"""The dashboard and the alerts go by metrics that there are, and say what to do."""

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from progressor.cli.main import build_app
from progressor.telemetry.metrics.registry import METRICS
from tests.support.telemetry.promql import metric_of, query, series

DOCKER = Path(__file__).parents[3] / "docker"
DASHBOARD = json.loads((DOCKER / "grafana/dashboards/progressor.json").read_text("utf-8"))
PANELS = [it for it in DASHBOARD["panels"] if it["type"] != "row"]
ALL_RULES = [
    rule
    for group in yaml.safe_load((DOCKER / "prometheus/rules.yml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
]
RULES = [rule for rule in ALL_RULES if "alert" in rule]
RECORDED = [rule for rule in ALL_RULES if "record" in rule]
KNOWN = series() | {rule["record"]: query(rule["expr"]).groups[0] for rule in RECORDED}
RULE_TESTS = yaml.safe_load((DOCKER / "prometheus/rules_test.yml").read_text("utf-8"))["tests"]

PAGE = (DOCKER.parent / "docs/reference/alerts.md").read_text("utf-8")


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
    names = itertools.chain.from_iterable(query(it).names for _, it in queries_of_the_dashboard())

    assert {metric.name for metric in METRICS.values()} - {*map(metric_of, names)} == set()


def test_what_a_legend_names_is_what_the_query_groups_by() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            groups = query(target["expr"]).groups
            is_one = "sum(" in target["expr"] or panel["type"] == "stat"
            kept = groups[0] if groups else frozenset[str]() if is_one else {"instance"}
            assert {*_LEGEND.findall(target["legendFormat"])} == kept - {"le"}, target


@pytest.mark.parametrize("rule", RULES, ids=lambda it: it["alert"])
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


@pytest.mark.parametrize("rule", RECORDED, ids=lambda it: it["record"])
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
