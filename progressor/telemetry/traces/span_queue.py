"""The queue of spans to the collector: bounded, and emptied by its own thread.

Whatever the collector does, ending a span never waits and never logs. (OpenTelemetry's own
processor, 1.45, logs each span that finds its queue full, so that an unavailable collector slows
down the engine.) At most QUEUE_MAX spans wait; further ones are lost, as are batches that the
collector did not take, and counted. A killed replica loses about the last INTERVAL_SECONDS.
"""

import collections
import logging
import threading
from collections.abc import Iterable

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from progressor.telemetry.instruments import Labels

QUEUE_MAX = 4_096
"""Spans that wait; about 3 KB each."""

BATCH_MAX = 512
"""Spans per message."""

INTERVAL_SECONDS = 1.0
"""How long a span waits for others, unless there are BATCH_MAX before."""

_PUSHED, _NO_ROOM, _NOT_TAKEN = ("pushed",), ("no_room",), ("not_taken",)

_log = logging.getLogger(__name__)


class SpanQueue(SpanProcessor):
    def __init__(self, exporter: SpanExporter, *, last_seconds: float) -> None:
        """Take the exporter, and the timeout of the last push, and again of its cancellation."""
        self._exporter = exporter
        self._last_seconds = last_seconds
        self._queue: collections.deque[ReadableSpan] = collections.deque()
        self._awake = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closed = self._is_given_up = False
        # Each is written by one thread: the first by the one that ends spans, the others by ours.
        self._no_room_count = self._pushed_count = self._not_taken_count = 0

    def counts(self) -> Iterable[tuple[Labels, float]]:
        """Return the counts of spans by fate; called from any thread."""
        return [
            (_PUSHED, self._pushed_count),
            (_NO_ROOM, self._no_room_count),
            (_NOT_TAKEN, self._not_taken_count),
        ]

    def on_end(self, span: ReadableSpan) -> None:
        queue = self._queue
        if len(queue) >= QUEUE_MAX or self._is_closed:
            self._no_room_count += 1
            return
        queue.append(span)
        if self._thread is None:
            self._start()
        if len(queue) >= BATCH_MAX and not self._awake.is_set():
            self._awake.set()

    def shutdown(self) -> None:
        """Push the queued spans, within twice `last_seconds`, and end. Safe to repeat."""
        self._is_closed = True
        self._awake.set()
        thread = self._thread
        if thread is not None:
            thread.join(self._last_seconds)
        # Breaks off the current push, and drops the rest.
        self._is_given_up = True
        self._exporter.shutdown()
        if thread is not None:
            thread.join(self._last_seconds)
        self._thread = None

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="spans", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while not self._is_closed:
            self._awake.wait(INTERVAL_SECONDS)
            self._awake.clear()
            self._push_all()
        # Spans that came between the last push and the shutdown.
        self._push_all()

    def _push_all(self) -> None:
        queue = self._queue
        while queue:
            batch = [queue.popleft() for _ in range(min(BATCH_MAX, len(queue)))]
            if not self._is_given_up and self._is_taken(batch):
                self._pushed_count += len(batch)
            else:
                self._not_taken_count += len(batch)

    def _is_taken(self, batch: list[ReadableSpan]) -> bool:
        try:
            return self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception:  # noqa: BLE001  a bug of the exporter must not end the thread
            # `shutdown` closes the channel under a push that takes too long.
            if not self._is_given_up:
                _log.exception("spans not pushed")
            return False
