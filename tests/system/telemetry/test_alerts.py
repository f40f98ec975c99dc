"""Metrics, alerts and dashboard as Prometheus's own tool sees them; skipped where there is none."""

import itertools
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import generate_latest

from tests.support.telemetry.metrics import filled_metrics, registry_of

DOCKER = Path(__file__).parents[3] / "docker"
PROMTOOL = shutil.which("promtool")
TESTS = sorted(file.name for file in (DOCKER / "prometheus").glob("rules*_test.yml"))

_SECONDS = 600
"""Far longer than promtool takes: 5 to 30 seconds, by what else the machine does."""

pytestmark = pytest.mark.skipif(
    PROMTOOL is None, reason="no promtool on the PATH: Debian's package prometheus has it"
)


def test_every_metric_is_read_and_nothing_but_the_unit_in_a_name_is_unusual() -> None:
    assert PROMTOOL is not None
    text = generate_latest(registry_of(filled_metrics()))

    ended = subprocess.run(
        [PROMTOOL, "check", "metrics"],
        input=text,
        check=False,
        capture_output=True,
        timeout=_SECONDS,
    )

    remarks = (ended.stdout + ended.stderr).decode().splitlines()
    assert [it for it in remarks if not it.endswith("should not contain abbreviated units")] == []
    assert all("_ms" in it for it in remarks)


def promtool(*arguments: str, folder: Path) -> str:
    """Return what promtool says, which must be that all is well."""
    assert PROMTOOL is not None
    ended = subprocess.run(
        [PROMTOOL, *arguments],
        cwd=folder, check=False, capture_output=True, text=True, timeout=_SECONDS,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_each_alert_fires_where_it_should_and_is_silent_where_it_should_not() -> None:
    said = promtool("test", "rules", *TESTS, folder=DOCKER / "prometheus")

    assert said.count("SUCCESS") == len(TESTS) == 2


def with_threshold(expression: str, number: int, factor: float) -> str:
    """Return a rule with another threshold, of those that it has."""
    found = [*_THRESHOLD.finditer(expression)]
    if not found:
        return expression
    at = found[number]
    threshold = float(at[2]) * factor
    if not float(at[2]):
        threshold = factor if factor > 1 else 0
    return f"{expression[: at.start(2)]}{threshold:g}{expression[at.end(2) :]}"


def without_newcomers(expression: str) -> str:
    """Return a rule that sees no growth in a series which was not there before."""
    return re.sub(r"\s+or\s+(sum by \([^)]*\) \([^)]*\) > 0|[^()]*)(?=\s*\)?\s*$)", "", expression)


_THRESHOLD = re.compile(r"([<>]) ([\d.]+)")

MUTANTS: Mapping[str, Callable[[str], str]] = {
    "never": lambda _: "vector(0) > 1",
    "always": lambda _: "vector(1)",
    "much stricter first": lambda it: with_threshold(it, 0, 100),
    "much stricter last": lambda it: with_threshold(it, -1, 100),
    "much looser first": lambda it: with_threshold(it, 0, 0.01),
    "much looser last": lambda it: with_threshold(it, -1, 0.01),
    "without newcomers": without_newcomers,
}


def rules() -> Any:
    return yaml.safe_load((DOCKER / "prometheus/rules.yml").read_text("utf-8"))


def broken_by(change: Callable[[dict[str, Any]], None], folder: Path) -> str:
    """Return what promtool says of the tests once all rules have been through a change."""
    changed = rules()
    for rule in itertools.chain.from_iterable(group["rules"] for group in changed["groups"]):
        change(rule)
    (folder / "rules.yml").write_text(yaml.safe_dump(changed), "utf-8")
    for name in TESTS:
        shutil.copy(DOCKER / "prometheus" / name, folder)
    with pytest.raises(AssertionError, match="FAILED") as caught:
        promtool("test", "rules", *TESTS, folder=folder)
    return str(caught.value)


# Slow, since promtool takes seconds for each.
@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_alert_that_was_changed_is_found_out(mutant: str, tmp_path: Path) -> None:
    changed: set[str] = set()

    def change(rule: dict[str, Any]) -> None:
        mutated = MUTANTS[mutant](rule["expr"])
        if "alert" in rule and mutated != rule["expr"]:
            changed.add(rule["alert"])
            rule["expr"] = mutated

    said = broken_by(change, tmp_path)

    assert changed
    assert {alert for alert in changed if alert not in said} == set()


@pytest.mark.matrix
@pytest.mark.parametrize("mutant", ["never", "without newcomers"])
@pytest.mark.parametrize(
    "record",
    [it["record"] for group in rules()["groups"] for it in group["rules"] if "record" in it],
)
def test_what_is_recorded_otherwise_is_found_out(record: str, mutant: str, tmp_path: Path) -> None:
    def change(rule: dict[str, Any]) -> None:
        if rule.get("record") == record:
            rule["expr"] = MUTANTS[mutant](rule["expr"])

    assert "ALERTS" in broken_by(change, tmp_path)


def test_prometheus_takes_its_configuration() -> None:
    said = promtool("check", "config", "prometheus.yml", folder=DOCKER / "prometheus")

    assert "1 rule files found" in said


def test_every_query_of_the_dashboard_is_one(tmp_path: Path) -> None:
    dashboard = json.loads((DOCKER / "grafana/dashboards/progressor.json").read_text("utf-8"))
    queries = [
        target["expr"].replace("$__rate_interval", "1m")
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    ]
    rules = [{"record": f"panel:{number}", "expr": it} for number, it in enumerate(queries)]
    text = yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]})
    (tmp_path / "rules.yml").write_text(text, "utf-8")

    assert f"{len(queries)} rules found" in promtool("check", "rules", "rules.yml", folder=tmp_path)
