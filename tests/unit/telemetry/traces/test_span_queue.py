"""Spans on their way to a collector that takes them, refuses them, breaks, or hangs."""

import logging
import threading
from collections.abc import Callable, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from progressor.telemetry.traces import span_queue
from progressor.telemetry.traces.span_queue import BATCH_MAX, QUEUE_MAX, SpanQueue

PATIENCE_SECONDS = 30.0

Answer = Callable[[], SpanExportResult]


def taken() -> SpanExportResult:
    return SpanExportResult.SUCCESS


def refused() -> SpanExportResult:
    return SpanExportResult.FAILURE


def broken() -> SpanExportResult:
    message = "a bug"
    raise ValueError(message)


class Exporter(SpanExporter):
    """Answers as told, once it is let; `shutdown` ends what hangs."""

    def __init__(self, answer: Answer = taken, *, hangs: bool = False) -> None:
        """Take the answer to every batch."""
        self.batches: list[list[str]] = []
        self.begun = threading.Event()
        self.shutdown_count = 0
        self._answer = answer
        self._let_go = threading.Event()
        if not hangs:
            self._let_go.set()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.begun.set()
        assert self._let_go.wait(PATIENCE_SECONDS)
        self.batches.append([span.name for span in spans])
        return self._answer()

    def shutdown(self) -> None:
        self.shutdown_count += 1
        self._let_go.set()


def threads() -> list[threading.Thread]:
    return [it for it in threading.enumerate() if it.name == "spans"]


class Ended:
    """A queue, and spans that end into it."""

    def __init__(self, exporter: Exporter, *, last_seconds: float = PATIENCE_SECONDS) -> None:
        self.queue = SpanQueue(exporter, last_seconds=last_seconds)
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(self.queue)
        self._tracer = provider.get_tracer("test")
        self._count = 0

    def end(self, count: int = 1) -> None:
        for _ in range(count):
            self._tracer.start_span(str(self._count)).end()
            self._count += 1

    def shut_down(self) -> None:
        """End it, and wait for what it has given up."""
        self.queue.shutdown()
        for thread in threads():
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()

    def counts(self) -> dict[str, float]:
        return {labels[0]: value for labels, value in self.queue.counts()}


def test_every_span_is_pushed_once_in_the_order_in_which_they_ended() -> None:
    exporter = Exporter()
    ended = Ended(exporter)

    ended.end(2 * BATCH_MAX + 1)
    ended.shut_down()

    pushed = [name for batch in exporter.batches for name in batch]
    assert pushed == [str(number) for number in range(2 * BATCH_MAX + 1)]
    assert max(map(len, exporter.batches)) <= BATCH_MAX
    assert ended.counts() == {"pushed": 2 * BATCH_MAX + 1, "no_room": 0, "not_taken": 0}


def test_a_lone_span_is_pushed_after_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(span_queue, "INTERVAL_SECONDS", 0.001)
    exporter = Exporter()
    ended = Ended(exporter)

    ended.end()

    assert exporter.begun.wait(PATIENCE_SECONDS)
    ended.shut_down()


def test_a_collector_that_hangs_holds_nobody_up_and_what_has_no_room_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    exporter = Exporter(hangs=True)
    ended = Ended(exporter, last_seconds=0.01)
    ended.end(BATCH_MAX)
    assert exporter.begun.wait(PATIENCE_SECONDS)

    with caplog.at_level(logging.DEBUG):
        ended.end(QUEUE_MAX + 7)

    assert ended.counts() == {"pushed": 0, "no_room": 7, "not_taken": 0}
    assert not caplog.records
    ended.shut_down()
    assert sum(ended.counts().values()) == BATCH_MAX + QUEUE_MAX + 7


def test_what_a_hanging_collector_has_not_taken_at_the_end_is_given_up() -> None:
    exporter = Exporter(refused, hangs=True)
    ended = Ended(exporter, last_seconds=0.01)
    ended.end(BATCH_MAX + 3)
    assert exporter.begun.wait(PATIENCE_SECONDS)

    ended.shut_down()

    # One batch was on its way; the rest was not tried.
    assert exporter.shutdown_count == 1
    assert len(exporter.batches) == 1
    assert ended.counts() == {"pushed": 0, "no_room": 0, "not_taken": BATCH_MAX + 3}


@pytest.mark.parametrize("answer", [refused, broken])
def test_a_batch_that_is_not_taken_is_counted_and_the_next_is_tried(answer: Answer) -> None:
    answers = [taken, answer]

    def by_turns() -> SpanExportResult:
        return answers.pop()()

    exporter = Exporter(by_turns)
    ended = Ended(exporter)

    ended.end(BATCH_MAX)
    assert exporter.begun.wait(PATIENCE_SECONDS)
    ended.end(2)
    ended.shut_down()

    assert sum(ended.counts().values()) == BATCH_MAX + 2
    assert ended.counts()["pushed"] == len(exporter.batches[-1])
    assert ended.counts()["not_taken"] == len(exporter.batches[0])


def test_an_exporter_that_breaks_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    ended = Ended(Exporter(broken))

    ended.end()
    ended.shut_down()

    assert [record.message for record in caplog.records] == ["spans not pushed"]


def test_what_ends_after_the_end_is_counted() -> None:
    ended = Ended(Exporter())
    ended.shut_down()

    ended.end()

    assert ended.counts() == {"pushed": 0, "no_room": 1, "not_taken": 0}
