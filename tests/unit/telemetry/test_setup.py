"""What the configuration makes of telemetry."""

import pytest

from progressor.clock import SystemClock
from progressor.settings.sections import Telemetry
from progressor.telemetry.metrics.registry import Metrics
from progressor.telemetry.setup import ReplicaTelemetry, resource_of
from progressor.telemetry.traces.tracing import SILENT


def telemetry_to(endpoint: str) -> ReplicaTelemetry:
    return ReplicaTelemetry(
        Telemetry(metrics_bind="off", otlp_endpoint=endpoint),
        Metrics(),
        instance="replica:1",
        chance=lambda: 0.0,
        clock=SystemClock(),
    )


def test_nothing_is_traced_or_pushed_without_an_endpoint() -> None:
    telemetry = telemetry_to("")

    assert telemetry.tracing is SILENT
    assert telemetry.open() == ""
    telemetry.close()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_with_an_endpoint_there_are_traces(scheme: str) -> None:
    assert telemetry_to(f"{scheme}://127.0.0.1:4317").tracing.is_on


def test_the_resource_has_what_the_environment_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")

    attributes = resource_of(service_name="service", instance="replica:1").attributes

    assert attributes["deployment.environment.name"] == "test"
    assert attributes["service.name"] == "service"
