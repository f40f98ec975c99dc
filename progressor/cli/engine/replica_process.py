"""A replica process, which the supervisor starts and which dies with it.

The supervisor runs this file as a module, and sends its process id and all settings on stdin.
Notifications go to stdout, one JSON document per line; the log goes to stderr.
"""

import ctypes
import functools
import os
import pickle
import signal
import sys

import msgspec

from progressor import errors
from progressor.cli.engine.hosting import HostedEngine, host
from progressor.cli.input.signals import forever, run_loop
from progressor.cli.output.exit_codes import ExitCode, exit_code_for
from progressor.cli.output.failure import only_ours, words_of
from progressor.engine import engine as app
from progressor.settings.config import Config

_PR_SET_PDEATHSIG = 1


class ReplicaListens(msgspec.Struct, tag=True, frozen=True):
    """The replica accepts connections and serves its metrics; PostgreSQL may be unavailable."""

    metrics_url: str


class ReplicaServes(msgspec.Struct, tag=True, frozen=True):
    """The replica is connected to PostgreSQL."""


class ReplicaFailed(msgspec.Struct, tag=True, frozen=True):
    """The replica ends with an error."""

    message: str
    reason: str
    fields: dict[str, str]
    code: int


Notification = ReplicaListens | ReplicaServes | ReplicaFailed


def main() -> int:
    """Run a replica until the supervisor sends SIGTERM, and return the exit code."""
    try:
        parent_id, config = pickle.load(sys.stdin.buffer)  # noqa: S301  our own parent wrote it
    except EOFError:
        return ExitCode.FAILED
    assert isinstance(config, Config), f"the supervisor sent {type(config)}"
    _die_with(parent_id)
    supervisor = _Supervisor()

    async def work(engine: HostedEngine) -> None:
        supervisor.notify(ReplicaListens(engine.metrics_url))
        await engine.serving.wait()
        supervisor.notify(ReplicaServes())
        await forever()

    open_engine = functools.partial(app.engine, port_shared=True)
    try:
        run_loop(host(config, open_engine=open_engine, work=work, one_of_many=True))
    except errors.ProgressorError as error:
        return supervisor.notify_failure(error)
    except ExceptionGroup as group:
        known = only_ours(group)
        if known is None:
            raise
        return supervisor.notify_failure(known)
    return ExitCode.DONE


class _Supervisor:
    def __init__(self) -> None:
        # Output of libraries must not come between the lines.
        self._pipe = os.dup(sys.stdout.fileno())
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def notify(self, notification: Notification) -> None:
        os.write(self._pipe, msgspec.json.encode(notification) + b"\n")

    def notify_failure(self, error: errors.ProgressorError) -> ExitCode:
        code = exit_code_for(error)
        fields = dict(words_of(error))
        self.notify(
            ReplicaFailed(message=str(error), reason=error.reason, fields=fields, code=code)
        )
        return code


def _die_with(parent_id: int) -> None:
    """Make the kernel kill this process when its parent ends, for any reason and without a drain.

    Other replicas collect its steps.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL)):
        raise OSError(ctypes.get_errno(), "the kernel cannot kill this process with its parent")
    if os.getppid() != parent_id:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
