"""The log: standard logging in, lines for people or JSON out, on stderr.

Rooms log by ``logging.getLogger(__name__)``, a constant text plus ``extra`` fields; here the
records become lines.
"""

import logging
import sys
from typing import Literal, TextIO

import structlog

_QUIET = ("asyncio", "grpc", "grpc._cython", "psycopg", "psycopg.pool")
"""Loggers whose routine news nobody asked for; their warnings are shown."""


def set_up_logs(
    *,
    level: Literal["debug", "info", "warning", "error"],
    log_format: Literal["auto", "console", "json"],
    replica: str = "",
    stream: TextIO | None = None,
) -> None:
    """Send every log record to `stream` from now on; repeating replaces the set-up.

    Args:
        level: The least that is said.
        log_format: auto: for people on a terminal, else JSON, one object a line.
        replica: A field of every record, for logs that several replicas write to one place.
        stream: Standard error if None.
    """
    stream = sys.stderr if stream is None else stream
    for_people = log_format == "console" or (log_format == "auto" and stream.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if replica:
        shared.append(_naming(replica))
    finish: list[structlog.typing.Processor] = (
        [structlog.dev.ConsoleRenderer(colors=stream.isatty())]
        if for_people
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *finish],
    )
    target = logging.StreamHandler(stream)
    target.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [target]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def _naming(replica: str) -> structlog.typing.Processor:
    def name(
        _logger: structlog.typing.WrappedLogger, _method: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        # A record that speaks of another replica says so itself.
        event.setdefault("replica", replica)
        return event

    return name
