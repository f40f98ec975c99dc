"""Spans on their way to the collector: a bounded line that a thread of its own empties.

What holds, whatever the collector does:

- Who ends a span never waits and never logs. OpenTelemetry's own processor (1.45) logs from there
  for each span that finds its queue full, so that a collector which is away slows down the engine.
- At most LINE_MAX spans wait; what comes beyond that is lost, and so is a batch that the collector
  did not take. What is lost is counted.
- A replica that is killed takes with it the spans of about the last INTERVAL_SECONDS.
"""

import collections
import logging
import threading
from collections.abc import Iterable

from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from progressor.telemetry.instruments import Labels

LINE_MAX = 4_096
"""Spans that wait; some 3 KB each."""

BATCH_MAX = 512
"""Spans of one message."""

INTERVAL_SECONDS = 1.0
"""How long a span waits for others, unless BATCH_MAX are there before."""

_PUSHED, _NO_ROOM, _NOT_TAKEN = ("pushed",), ("no_room",), ("not_taken",)

_log = logging.getLogger(__name__)


class SpanQueue(SpanProcessor):
    """The line, from the first span that ends to `shutdown`."""

    def __init__(self, exporter: SpanExporter, *, last_seconds: float) -> None:
        """Start nothing: the first span does.

        Args:
            exporter: Takes batches; called from one thread at a time.
            last_seconds: For what is pushed at the end; as long again for what it breaks off.
        """
        self._exporter = exporter
        self._last_seconds = last_seconds
        self._line: collections.deque[ReadableSpan] = collections.deque()
        self._awake = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closed = self._is_given_up = False
        # Each written by one thread: the first by whoever ends spans, the others by our own.
        self._no_room_count = self._pushed_count = self._not_taken_count = 0

    def counts(self) -> Iterable[tuple[Labels, float]]:
        """Return how many spans have met which fate so far; from any thread."""
        return [
            (_PUSHED, self._pushed_count),
            (_NO_ROOM, self._no_room_count),
            (_NOT_TAKEN, self._not_taken_count),
        ]

    def on_end(self, span: ReadableSpan) -> None:
        """Put a span in line, if there is room."""
        line = self._line
        if len(line) >= LINE_MAX or self._is_closed:
            self._no_room_count += 1
            return
        line.append(span)
        if self._thread is None:
            self._start()
        if len(line) >= BATCH_MAX and not self._awake.is_set():
            self._awake.set()

    def shutdown(self) -> None:
        """Push what is in line, within twice `last_seconds`, and end. Safe to repeat."""
        self._is_closed = True
        self._awake.set()
        thread = self._thread
        if thread is not None:
            thread.join(self._last_seconds)
        # What it tries just now it gives up, and what is left it does not try.
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
        # What came between the last look and the word of closing.
        self._push_all()

    def _push_all(self) -> None:
        line = self._line
        while line:
            batch = [line.popleft() for _ in range(min(BATCH_MAX, len(line)))]
            if not self._is_given_up and self._is_taken(batch):
                self._pushed_count += len(batch)
            else:
                self._not_taken_count += len(batch)

    def _is_taken(self, batch: list[ReadableSpan]) -> bool:
        try:
            return self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception:  # noqa: BLE001  a bug of the exporter must not end all that follows
            # Where it was given up, its channel was closed under it.
            if not self._is_given_up:
                _log.exception("spans not pushed")
            return False
