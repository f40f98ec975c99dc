"""Log setup: standard logging to stderr, as human-readable lines or as JSON."""

import contextlib
import io
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Literal, TextIO

import structlog
from opentelemetry import trace

from progressor.clock import SystemClock
from progressor.telemetry.logs import level as log_level
from progressor.telemetry.logs import stderr_lines
from progressor.telemetry.logs.level import Cancellable, Later, Level
from progressor.telemetry.logs.printable import printable
from progressor.telemetry.logs.repetition import Repetition


def set_up_logs(
    *,
    level: Level,
    log_format: Literal["auto", "console", "json"],
    replica: str = "",
    stream: TextIO | None = None,
) -> None:
    """Send every log record to `stream` from now on; another call replaces the set-up.

    `log_format` auto: for people on a terminal, else JSON, one object per line. `replica` is a
    field of every record, for a log that several replicas share; `stream` None: standard error.
    """
    stream = sys.stderr if stream is None else stream
    for_people = _is_for_people(log_format, stream)
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if replica:
        shared.append(_naming(replica))
    finish: list[structlog.typing.Processor] = (
        [
            _make_printable,
            structlog.dev.ConsoleRenderer(
                colors=stream.isatty(), exception_formatter=_write_traceback
            ),
        ]
        if for_people
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    output = LogOutput(stream, monotonic=SystemClock().monotonic, later=in_a_thread)
    output.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *finish],
        )
    )
    _replace_output(output)
    log_level.apply(level)


@contextlib.contextmanager
def whole_log(
    *, level: Level, log_format: Literal["auto", "console", "json"], replica: str = ""
) -> Iterator[None]:
    """Send every log record to standard error; in JSON also what libraries write there."""
    with contextlib.ExitStack() as stack:
        stream = sys.stderr
        if not _is_for_people(log_format, stream):
            stream = stack.enter_context(stderr_lines.captured())
        set_up_logs(level=level, log_format=log_format, replica=replica, stream=stream)
        yield


class LogOutput(logging.StreamHandler[TextIO]):
    """Writes records to a stream, with the ids of the current trace, and counts repetition."""

    def __init__(self, stream: TextIO, *, monotonic: Callable[[], float], later: Later) -> None:
        super().__init__(stream)
        self._repetition = Repetition(monotonic=monotonic)
        self._later = later
        self._guard = threading.Lock()
        self._ending: Cancellable | None = None
        self._closed = False

    def handle(self, record: logging.LogRecord) -> bool:
        # Not in the formatter: a suppressed record may be written after its span has ended.
        _add_trace(record)
        released = self._repetition.take(record)
        for each in released:
            super().handle(each)
        is_written = bool(released) and released[-1] is record
        if not is_written:
            self._await_end()
        return is_written

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  # logging's name
        """Report that `record` cannot be written, unless the report would fail likewise."""
        if record.name not in {stderr_lines.CORE, stderr_lines.OTHER}:
            super().handleError(record)

    def close(self) -> None:
        """Write the suppressed records. Safe to repeat."""
        with self._guard:
            ending, self._ending, self._closed = self._ending, None, True
        if ending is not None:
            ending.cancel()
        for each in self._repetition.close():
            super().handle(each)
        super().close()

    def _await_end(self) -> None:
        with self._guard:
            if self._ending is not None or self._closed:
                return
            seconds = self._repetition.seconds_left()
            if seconds is not None:
                self._ending = self._later(seconds, self._end)

    def _end(self) -> None:
        with self._guard:
            self._ending = None
        for each in self._repetition.expire():
            super().handle(each)
        self._await_end()


def in_a_thread(seconds: float, function: Callable[[], None]) -> Cancellable:
    timer = threading.Timer(seconds, function)
    timer.daemon = True
    timer.name = "log"
    timer.start()
    return timer


def _is_for_people(log_format: Literal["auto", "console", "json"], stream: TextIO) -> bool:
    return log_format == "console" or (log_format == "auto" and stream.isatty())


def _replace_output(output: LogOutput) -> None:
    root = logging.getLogger()
    before, root.handlers[:] = root.handlers[:], [output]
    for each in before:
        if isinstance(each, LogOutput):
            each.close()


def _add_trace(record: logging.LogRecord) -> None:
    context = trace.get_current_span().get_span_context()
    if context.is_valid:
        record.trace_id = trace.format_trace_id(context.trace_id)
        record.span_id = trace.format_span_id(context.span_id)


def _make_printable(
    _logger: structlog.typing.WrappedLogger, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    return {key: printable(it) if isinstance(it, str) else it for key, it in event.items()}


def _write_traceback(stream: TextIO, exception: structlog.typing.ExcInfo) -> None:
    """Write a traceback without variables, indented: external text may imitate a log line."""
    whole = io.StringIO()
    structlog.dev.plain_traceback(whole, exception)
    stream.writelines(f"\n  {printable(line)}" for line in whole.getvalue().strip().split("\n"))


def _naming(replica: str) -> structlog.typing.Processor:
    def name(
        _logger: structlog.typing.WrappedLogger, _method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        # A record about another replica already has the field.
        event.setdefault("replica", replica)
        return event

    return name
