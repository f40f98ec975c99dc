"""Exports the metrics of a replica: to Prometheus, by OTLP, or both."""

from progressor.clock import Clock
from progressor.settings.sections import Telemetry
from progressor.telemetry.metrics.otlp import Push
from progressor.telemetry.metrics.prometheus import MetricsEndpoint
from progressor.telemetry.metrics.registry import Metrics
from progressor.telemetry.resource import resource_of


class Exports:
    """The endpoint and the push that are configured, between `open` and `close`."""

    def __init__(
        self, metrics: Metrics, settings: Telemetry, *, instance: str, clock: Clock
    ) -> None:
        self.url = ""
        """The address for scrapes; empty without an endpoint and before `open`."""
        self._metrics = metrics
        self._settings = settings
        self._instance = instance
        self._clock = clock
        self._endpoint: MetricsEndpoint | None = None
        self._push: Push | None = None

    def open(self) -> str:
        """Begin to serve and to push; return `url`.

        Raises:
            ConfigError: The endpoint cannot listen on its address.
        """
        bind, collector = self._settings.metrics_at(), self._settings.otlp_endpoint
        if bind is not None:
            endpoint = MetricsEndpoint(self._metrics, bind, self._clock)
            self.url = endpoint.open()
            self._endpoint = endpoint
        if collector:
            self._push = Push(
                self._metrics,
                endpoint=collector,
                interval=self._settings.metrics_interval,
                resource=resource_of(
                    service_name=self._settings.service_name, instance=self._instance
                ),
                clock=self._clock,
            )
            self._push.start()
        return self.url

    def close(self) -> None:
        """Push the last values, and close what `open` opened, if anything."""
        if self._push is not None:
            self._push.stop()
        if self._endpoint is not None:
            self._endpoint.close()
        self._endpoint = self._push = None
