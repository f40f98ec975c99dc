"""Prometheus reads two replicas under load, evaluates the rules, and answers the dashboard.

Skipped where there is none: Debian packages it.
"""

import functools
import json
import operator
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest
import pytest_asyncio

from progressor.telemetry.instruments import Metric, MetricKind
from progressor.telemetry.metrics.registry import METRICS
from tests.support.engine.replica import LONG_LEASE, NOW_AND_THEN, open_env, running_replica
from tests.support.telemetry.load import ROUNDS, Load, keep_a_gate
from tests.support.telemetry.prometheus import PROMETHEUS, Prometheus, running_prometheus
from tests.support.telemetry.promql import query

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(PROMETHEUS is None, reason="no prometheus on the PATH"),
]

DASHBOARD = Path(__file__).parents[3] / "docker/grafana/dashboards/progressor.json"
VARIABLES = {"$namespace": ".*", "$instance": ".*", "$__rate_interval": "30s"}

SELDOM = {
    "zombie_collection", "zombies_collected", "fenced", "abandoned", "scan_found",
    "gates_scan_found", "scans_failed", "notifications_lost", "spans", "jobs_recovered",
    "jobs_running", "job_nodes", "jobs_ended", "job_nodes_ended", "jobs_overdue", "upkeep_nodes",
    "schedule_runs", "schedule_lateness", "largest_step",
}  # fmt: skip
"""What this load makes no series of, or none that is drawn."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def prometheus(
    database: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Prometheus]:
    # What is answered by a script must be asked once, however slow the machine is.
    settings = {**LONG_LEASE, "telemetry.metrics_bind": "127.0.0.1:0"}
    async with (
        running_replica(database, settings) as first,
        open_env(first, retry_policy=NOW_AND_THEN) as env,
    ):
        await keep_a_gate(env)
        async with running_replica(database, settings) as second:
            await second.points.wait("scanned", scan="queues")
            places = [
                it.engine.metrics_url.removeprefix("http://").removesuffix("/metrics")
                for it in (first, second)
            ]
            folder = tmp_path_factory.mktemp("prometheus")
            async with running_prometheus(folder, places) as server:
                # A rate takes two values of a series.
                for turn in range(1, 3):
                    await Load(env, second, name=f"turn-{turn}").run()
                    await server.until(
                        'sum(progressor_requests_total{operation="Remove"})',
                        functools.partial(operator.eq, [turn * ROUNDS]),
                    )
                yield server


async def test_it_reads_both_replicas(prometheus: Prometheus) -> None:
    targets = (await prometheus.api("targets"))["activeTargets"]

    assert [(it["health"], it["lastError"]) for it in targets] == [("up", "")] * 2


async def test_it_knows_every_metric_by_its_kind_and_its_sentence(prometheus: Prometheus) -> None:
    known = await prometheus.api("metadata")

    for metric in METRICS.values():
        [told] = known[metric.name]
        assert told["type"] == metric.kind
        assert metric.meaning in told["help"]


@pytest.mark.parametrize("name", [it for it in METRICS if it not in SELDOM])
async def test_it_has_values_of_every_metric(prometheus: Prometheus, name: str) -> None:
    metric = METRICS[name]
    found = await prometheus.query(f"{sample_of(metric)}")

    assert found
    for labels, value in found:
        # To Prometheus an empty label is none.
        assert {"__name__", "job", "instance"} <= labels.keys()
        assert labels.keys() <= {"__name__", "job", "instance", *metric.labels}
        assert value >= 0


def sample_of(metric: Metric) -> str:
    """Return the name of a series that each value of a metric has."""
    suffixes = {MetricKind.COUNTER: "_total", MetricKind.HISTOGRAM: "_count", MetricKind.GAUGE: ""}
    return metric.name + suffixes[metric.kind]


async def test_every_rule_is_evaluated_without_an_error(prometheus: Prometheus) -> None:
    last = "namespace:progressor_task_processing:increase5m"
    await prometheus.until(last, bool)
    groups = (await prometheus.api("rules"))["groups"]
    rules = [rule for group in groups for rule in group["rules"]]

    assert len(rules) > 10
    assert {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"} == {}


async def test_what_is_recorded_is_what_was_counted(prometheus: Prometheus) -> None:
    # Prometheus is younger than the range, so that all of it is new.
    recorded = 'namespace_outcome_reason:progressor_requests:increase5m{reason="REJECTED"}'

    assert await prometheus.until(recorded, lambda values: values == [2 * ROUNDS])


async def test_alerts_tell_of_what_went_on(prometheus: Prometheus) -> None:
    broken = 'ALERTS{alertname="ProgressorProcessesBreak", alertstate="run"}'
    await prometheus.until(broken, bool)
    told = {labels["alertname"] for labels, _ in await prometheus.query("ALERTS")}

    # Three attempts of twenty fail, and one request of twenty-one.
    assert told >= {"ProgressorProcessesBreak", "ProgressorProcessorErrors"}
    assert not told & {"ProgressorAway", "ProgressorReplicaAway", "ProgressorRequestErrors"}


def panels() -> Iterator[tuple[str, str]]:
    """Yield the queries of the dashboard, each with the title of its panel."""
    for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], replaced(target["expr"], VARIABLES)


def replaced(text: str, variables: Mapping[str, str]) -> str:
    """Return a query as Grafana sends it."""
    for name, value in variables.items():
        text = text.replace(name, value)
    return text


@pytest.mark.parametrize(("title", "expression"), [*panels()])
async def test_every_query_of_the_dashboard_has_an_answer(
    prometheus: Prometheus, title: str, expression: str
) -> None:
    found = await prometheus.query(expression)

    seldom = {METRICS[it].name for it in SELDOM}
    asked = {it.removesuffix("_total").removesuffix("_bucket") for it in query(expression).names}
    assert found or asked & seldom, title
