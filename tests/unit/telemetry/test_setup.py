"""What the configuration makes of telemetry."""

import pytest

from progressor.clock import SystemClock
from progressor.settings.sections import Telemetry
from progressor.telemetry.metrics.exports import Exports
from progressor.telemetry.metrics.registry import Metrics
from progressor.telemetry.resource import resource_of
from progressor.telemetry.setup import SILENT, ReplicaTracing, set_up


def traced(endpoint: str) -> ReplicaTracing:
    return set_up(
        otlp_endpoint=endpoint,
        service_name="service",
        instance="replica:1",
        sample_ratio=1.0,
        chance=lambda: 0.0,
    )


def test_nothing_is_traced_without_an_endpoint() -> None:
    assert traced("") is SILENT
    assert not SILENT.tracing.is_on


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_with_an_endpoint_there_are_traces(scheme: str) -> None:
    telemetry = traced(f"{scheme}://127.0.0.1:4317")

    assert telemetry.tracing.is_on
    telemetry.shutdown()


def test_without_an_endpoint_metrics_are_not_pushed() -> None:
    exports = Exports(
        Metrics(), Telemetry(metrics_bind="off"), instance="replica:1", clock=SystemClock()
    )

    assert exports.open() == ""
    exports.close()


def test_the_resource_has_what_the_environment_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")

    attributes = resource_of(service_name="service", instance="replica:1").attributes

    assert attributes["deployment.environment.name"] == "test"
    assert attributes["service.name"] == "service"
