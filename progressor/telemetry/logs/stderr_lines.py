"""Turns lines that libraries write to standard error into log records.

gRPC's core is written in C++ and writes lines in its own format to descriptor 2, from its own
threads. In a JSON log no parser could read them. So within the context, descriptor 2 is a pipe
whose lines become records: of logger ``grpc_core``, with the level and place that they contain, or
else of logger ``stderr``. The log itself goes to the original standard error, and so does the
traceback of a crash. Writers never wait for the pipe because they may hold locks that its reader
needs: a line that does not fit is lost.
"""

import contextlib
import faulthandler
import fcntl
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator
from typing import TextIO

LINE_BYTES_MAX = 16_384
"""A longer line becomes several records."""

CORE, OTHER = "grpc_core", "stderr"
"""The loggers."""

_PIPE_BYTES = 1 << 20
_JOIN_SECONDS = 5.0
_STDERR = 2

# As absl writes it: E1123 14:55:45.107831    9594 ssl_transport_security.cc:1558] Invalid ...
_CORE_LINE = re.compile(r"([IWEF])\d{4} [\d:.]+ +\d+ ([^ ]+:\d+)\] (.*)")
_LEVELS = {
    "I": logging.INFO,
    "W": logging.WARNING,
    "E": logging.ERROR,
    "F": logging.CRITICAL,
}
# Printed before the first line of a program that has not initialized absl, as in Python.
_PREAMBLE = "WARNING: All log messages before absl::InitializeLog() is called"


@contextlib.contextmanager
def captured() -> Iterator[TextIO]:
    """Turn lines on standard error into records, and yield the original stream for the log.

    If `sys.stderr` is not descriptor 2, nothing is captured.
    """
    if not _is_real():
        yield sys.stderr
        return
    real = os.fdopen(os.dup(_STDERR), "w", encoding="utf-8", errors="backslashreplace", buffering=1)
    faulted = faulthandler.is_enabled()
    faulthandler.enable(real)
    read_end, write_end = _pipe()
    os.dup2(write_end, _STDERR)
    end = os.urandom(16).hex()
    reader = threading.Thread(target=_read, args=(read_end, end), name="stderr", daemon=True)
    reader.start()
    try:
        yield real
    finally:
        sys.stderr.flush()
        os.dup2(real.fileno(), _STDERR)
        # Not by closing the pipe: a child process may have it open.
        os.set_blocking(write_end, True)
        os.write(write_end, f"\n{end}\n".encode())
        os.close(write_end)
        reader.join(_JOIN_SECONDS)
        faulthandler.enable() if faulted else faulthandler.disable()


def _is_real() -> bool:
    try:
        return sys.stderr.fileno() == _STDERR
    except (AttributeError, OSError, ValueError):
        return False


def _pipe() -> tuple[int, int]:
    read_end, write_end = os.pipe()
    with contextlib.suppress(OSError, AttributeError):  # over the user's limit, or not Linux
        fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    os.set_blocking(write_end, False)
    return read_end, write_end


def _read(read_end: int, end: str) -> None:
    with os.fdopen(read_end, "rb") as pipe:
        while packed := pipe.readline(LINE_BYTES_MAX):
            line = packed.decode(errors="replace").rstrip()
            if line == end:
                return
            if line and not line.startswith(_PREAMBLE):
                _log(line)


def _log(line: str) -> None:
    found = _CORE_LINE.fullmatch(line)
    if found is None:
        # As the message itself, so that only equal lines count as repeated.
        logging.getLogger(OTHER).warning(line)
    else:
        severity, place, text = found.groups()
        logging.getLogger(CORE).log(_LEVELS[severity], text, extra={"place": place})
