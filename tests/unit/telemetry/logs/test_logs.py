"""Log lines: the trace they belong to, and repetition that is counted instead of logged."""

import io
import json
import logging
import threading
from typing import Literal

import pytest

from progressor.telemetry.logs.repetition import (
    REPEATED_IDS_MAX,
    REPEATED_MAX,
    WINDOW_SECONDS,
    WINDOWS_MAX,
    Repetition,
)
from progressor.telemetry.logs.setup import LogOutput, set_up_logs
from tests.support.runtime.timers import ManualTimers


class Log:
    """A logger of its own on a target, whose time stands still until it is moved."""

    def __init__(self) -> None:
        self.timers = ManualTimers()
        self.stream = io.StringIO()
        self.target = LogOutput(
            self.stream, monotonic=self.timers.monotonic, later=self.timers.later
        )
        self.records: list[logging.LogRecord] = []
        self.target.setFormatter(_Form(self.records))
        self.logger = self.named("room")

    def named(self, name: str) -> logging.Logger:
        logger = logging.Logger(name)  # noqa: LOG001  not in the tree: it ends with the test
        logger.addHandler(self.target)
        return logger

    @property
    def said(self) -> list[str]:
        return self.stream.getvalue().splitlines()


class _Form(logging.Formatter):
    """The text, the error, and what was added to it."""

    def __init__(self, records: list[logging.LogRecord]) -> None:
        super().__init__()
        self._records = records

    def format(self, record: logging.LogRecord) -> str:
        self._records.append(record)
        added = ("trace_id", "span_id", "repeated", "why")
        facts = [f"{it}={getattr(record, it)}" for it in added if hasattr(record, it)]
        error = record.exc_info[1] if record.exc_info else None
        told = () if error is None else (f"{type(error).__name__}: {error}",)
        return " ".join((record.getMessage(), *told, *facts))


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_no_record_controls_the_terminal_or_forges_a_line(
    log_format: Literal["console", "json"], root_logger: logging.Logger
) -> None:
    stream, worst = io.StringIO(), "a\x1b[2J\nFORGED\x9b31m"
    set_up_logs(level="info", log_format=log_format, stream=stream)

    root_logger.info("said %s", worst, extra={"why": worst, "all": [worst]})
    root_logger.error("failed", exc_info=ValueError(worst))

    said = stream.getvalue()
    assert "ValueError" in said
    assert not {it for it in said if not it.isprintable() and it != "\n"}
    assert not [line for line in said.splitlines() if line.startswith("FORGED")]


def test_a_line_names_its_replica_unless_it_speaks_of_another(
    root_logger: logging.Logger,
) -> None:
    stream = io.StringIO()
    set_up_logs(level="info", log_format="json", replica="host-1", stream=stream)

    root_logger.info("engine serves")
    root_logger.info("replica serves again", extra={"replica": "host-2"})

    lines = map(json.loads, stream.getvalue().splitlines())
    assert [it["replica"] for it in lines] == ["host-1", "host-2"]


def test_what_goes_on_is_said_once_more_with_its_count_when_the_window_ends(log: Log) -> None:
    for number in range(REPEATED_MAX + 100):
        log.logger.warning("away", extra={"why": number})
    meanwhile = len(log.said)
    log.timers.advance(WINDOW_SECONDS)

    assert meanwhile == REPEATED_MAX
    assert log.said[REPEATED_MAX:] == ["away repeated=100 why=104"]


def test_other_messages_loggers_and_levels_are_counted_by_themselves(log: Log) -> None:
    for _ in range(REPEATED_MAX + 1):
        log.logger.warning("away")
    log.logger.warning("full")
    log.named("other room").warning("away")
    log.logger.error("away")

    assert log.said[REPEATED_MAX:] == ["full", "away", "away"]


def test_the_count_names_what_the_lines_that_were_held_back_are_about(log: Log) -> None:
    for number in range(REPEATED_MAX + 3):
        about = {"namespace": "orders", "process_id": f"p{number}", "task_id": number, "why": "x"}
        log.logger.warning("process broke", extra=about)
    log.timers.advance(WINDOW_SECONDS)

    assert log.records[-1].__dict__["repeated_for"] == [
        {"process_id": f"p{number}", "task_id": number}
        for number in range(REPEATED_MAX, REPEATED_MAX + 3)
    ]


def test_the_count_names_each_thing_once_and_at_most_so_many(log: Log) -> None:
    for number in range(REPEATED_MAX + 10 * REPEATED_IDS_MAX):
        log.logger.info("retried", extra={"process_id": f"p{number // 2}"})
    log.timers.advance(WINDOW_SECONDS)

    named = [it["process_id"] for it in log.records[-1].__dict__["repeated_for"]]
    first = REPEATED_MAX // 2
    assert named == [f"p{number}" for number in range(first, first + REPEATED_IDS_MAX)]


def test_an_error_of_another_kind_or_place_is_said_in_the_midst_of_a_flood(log: Log) -> None:
    def flood(error: Exception, count: int) -> None:
        for _ in range(count):
            try:
                raise error
            except type(error):
                log.logger.exception("broke")

    flood(ValueError("one"), REPEATED_MAX + 10)
    flood(ValueError("two"), 1)
    flood(KeyError("three"), 1)
    log.logger.error("broke", exc_info=ValueError("from nowhere"))

    assert log.said == [
        *["broke ValueError: one"] * REPEATED_MAX,
        "broke KeyError: 'three'",
        "broke ValueError: from nowhere",
    ]


def test_closing_says_what_is_held_back_and_leaves_no_timer(log: Log) -> None:
    for _ in range(REPEATED_MAX + 7):
        log.logger.warning("away")
    log.target.close()
    log.target.close()

    assert log.said[REPEATED_MAX:] == ["away repeated=7"]
    assert log.timers.waiting == 0


def test_a_new_set_up_says_what_the_one_before_held_back(root_logger: logging.Logger) -> None:
    before, after = io.StringIO(), io.StringIO()
    set_up_logs(level="info", log_format="json", stream=before)
    for _ in range(REPEATED_MAX + 2):
        root_logger.warning("away")
    set_up_logs(level="info", log_format="json", stream=after)

    assert json.loads(before.getvalue().splitlines()[-1])["repeated"] == 2
    assert after.getvalue() == ""


def test_messages_beyond_the_bound_are_said_uncounted() -> None:
    repetition = Repetition(monotonic=lambda: 0.0)

    def record(number: int) -> logging.LogRecord:
        return logging.LogRecord("room", logging.INFO, "", 0, f"message {number}", None, None)

    for number in range(WINDOWS_MAX):
        repetition.take(record(number))
    beyond = [repetition.take(record(-1)) for _ in range(2 * REPEATED_MAX)]

    assert all(len(said) == 1 for said in beyond)
    assert repetition.seconds_left() is None


def test_many_threads_at_once_lose_nothing(log: Log) -> None:
    def flood() -> None:
        for _ in range(200):
            log.logger.warning("away")

    threads = [threading.Thread(target=flood) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.target.close()

    assert log.said == [*["away"] * REPEATED_MAX, f"away repeated={8 * 200 - REPEATED_MAX}"]
