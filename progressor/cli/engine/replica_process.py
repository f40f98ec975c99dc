"""One replica of a crew: a fresh interpreter that its parent feeds, hears, and does not outlive.

The crew runs this file as a module. The parent's process id and all settings come on stdin, and
what the parent must know goes out on stdout, one JSON text a line; the log goes to stderr, as
everywhere.
"""

import ctypes
import functools
import os
import pickle
import signal
import sys

import msgspec

from progressor import errors
from progressor.cli.engine.hosting import Engine, host
from progressor.cli.input.signals import forever, run_loop
from progressor.cli.output.exit_codes import ExitCode, exit_code_for
from progressor.cli.output.failure import only_ours, words_of
from progressor.engine import engine as app
from progressor.settings.config import Config

_PR_SET_PDEATHSIG = 1


class Listens(msgspec.Struct, tag=True, frozen=True):
    """It takes connections, which wait for PostgreSQL, and has its metrics at an address."""

    metrics_url: str


class Serves(msgspec.Struct, tag=True, frozen=True):
    """It has reached PostgreSQL."""


class Failed(msgspec.Struct, tag=True, frozen=True):
    """It ends with an error that somebody must see."""

    message: str
    reason: str
    fields: dict[str, str]
    code: int


News = Listens | Serves | Failed


def main() -> int:
    """Run a replica until its parent says SIGTERM, and return the exit code."""
    try:
        parent_id, config = pickle.load(sys.stdin.buffer)  # noqa: S301  our own parent wrote it
    except EOFError:
        return ExitCode.FAILED
    assert isinstance(config, Config), f"the parent sent {type(config)}"
    _end_with(parent_id)
    parent = _Parent()

    async def work(engine: Engine) -> None:
        parent.tell(Listens(engine.metrics_url))
        await engine.serving.wait()
        parent.tell(Serves())
        await forever()

    open_engine = functools.partial(app.engine, port_shared=True)
    try:
        run_loop(host(config, open_engine=open_engine, work=work, one_of_many=True))
    except errors.ProgressorError as error:
        return parent.tell_failure(error)
    except ExceptionGroup as group:
        known = only_ours(group)
        if known is None:
            raise
        return parent.tell_failure(known)
    return ExitCode.DONE


class _Parent:
    def __init__(self) -> None:
        # Whatever prints must not get between the lines.
        self._pipe = os.dup(sys.stdout.fileno())
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def tell(self, news: News) -> None:
        os.write(self._pipe, msgspec.json.encode(news) + b"\n")

    def tell_failure(self, error: errors.ProgressorError) -> ExitCode:
        code = exit_code_for(error)
        fields = dict(words_of(error))
        self.tell(Failed(message=str(error), reason=error.reason, fields=fields, code=code))
        return code


def _end_with(parent_id: int) -> None:
    """Have the kernel end us when the parent ends, however that was, also while we are stopped.

    At once and without a drain, as the parent did: what is in hand is collected by others.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL)):
        raise OSError(ctypes.get_errno(), "the kernel cannot end this process with its parent")
    if os.getppid() != parent_id:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
