"""Exit codes, which scripts can branch on."""

import enum

from progressor import errors
from progressor.sdk.transport.failures import EngineUnavailableError

EPILOGUE = """\
Exit codes:
  0  done
  1  failed for another reason, given in the message
  2  the command line, configuration, database or request is invalid
  3  no such namespace, process, event, task, gate, job or schedule
  4  not in this state: exists already, failed, finished, removed, key reused
  5  unavailable: engine or PostgreSQL away, overloaded, draining; try again
  6  the deadline passed; an accepted task continues
  7  the processor rejected the request
  8  the awaited job failed
  9  the awaited job was cancelled

Every command prints one JSON document with --json; errors go to stderr.
The namespace is that of -n, else PROGRESSOR_NAMESPACE, else "default"."""


class ExitCode(enum.IntEnum):
    """The exit codes of every command."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    STATE = 4
    UNAVAILABLE = 5
    DEADLINE = 6
    REJECTED = 7
    JOB_FAILED = 8
    JOB_CANCELLED = 9
    INTERRUPTED = 130
    """By Ctrl-C, as in shells."""


# The first class that fits counts, so subclasses come before their bases.
_BY_CLASS: tuple[tuple[type[errors.ProgressorError], ExitCode], ...] = (
    (errors.ConfigError, ExitCode.USAGE),
    (errors.EmbeddedPostgresError, ExitCode.USAGE),
    (errors.InvalidRequestError, ExitCode.USAGE),
    (errors.NotFoundError, ExitCode.NOT_FOUND),
    (errors.StateError, ExitCode.STATE),
    (errors.RejectedError, ExitCode.REJECTED),
    (errors.DeadlineExceededError, ExitCode.DEADLINE),
    (errors.OverloadedError, ExitCode.UNAVAILABLE),
    (errors.ShuttingDownError, ExitCode.UNAVAILABLE),
    (errors.ReplicaStoppedError, ExitCode.UNAVAILABLE),
    (errors.StorageUnavailableError, ExitCode.UNAVAILABLE),
    (EngineUnavailableError, ExitCode.UNAVAILABLE),
)


def exit_code_for(error: errors.ProgressorError) -> ExitCode:
    """Return the exit code of a command that ends with `error`."""
    for kind, code in _BY_CLASS:
        if isinstance(error, kind):
            return code
    return ExitCode.FAILED
