"""A replica process, which the supervisor starts and which dies with it.

The supervisor runs this file as a module, and sends on stdin its process id, all settings, and
whether to pause all namespaces.
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
from progressor.cli.engine.hosting import host
from progressor.cli.input.signals import forever, run_loop
from progressor.cli.output import ExitCode, exit_code_for, only_ours, words_of
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
        parent_id, config, paused = pickle.load(sys.stdin.buffer)  # noqa: S301  our own parent wrote it
    except EOFError:
        return ExitCode.FAILED
    assert isinstance(config, Config), f"the supervisor sent {type(config)}"
    _die_with(parent_id)
    pipe = os.dup(sys.stdout.fileno())
    # Output of libraries must not come between the lines.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def notify(notification: Notification) -> None:
        os.write(pipe, msgspec.json.encode(notification) + b"\n")

    async def work(engine: app.Engine) -> None:
        notify(ReplicaListens(engine.metrics_url))
        await engine.serving.wait()
        notify(ReplicaServes())
        await forever()

    open_engine = functools.partial(app.engine, port_shared=True, paused=paused)
    try:
        run_loop(host(config, work=work, open_engine=open_engine, one_of_many=True))
    except (errors.ProgressorError, ExceptionGroup) as error:
        known = only_ours(error)
        code = exit_code_for(known)
        notify(ReplicaFailed(str(known), known.reason, words_of(known), code))
        return code
    return ExitCode.DONE


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
