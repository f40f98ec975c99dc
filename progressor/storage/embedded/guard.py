"""Runs one command while the pipe on stdin is open, then stops it; a process of its own.

`embedded` starts this file by its path (`python -I -S`) and nothing imports it, so it uses
the standard library only. Three things need a process between us and PostgreSQL:

- The pipe closes even when our process is killed with SIGKILL, so the guard notices.
- PostgreSQL refuses root. A user namespace, in which we are another user, can only be
  entered by a process with one thread, and a process that has loaded gRPC has many.
- The server's log must be kept short while the server runs.

Arguments: identity ("same", "user:<uid>:<gid>", "namespace:<uid>:<gid>"), name of the
signal that stops the command, log file, directory to remove at the end (or ""), command.
The first line on stdout is "started <pid>" or "failed <why>"; the exit code is the command's.
"""

import ctypes
import os
import select
import signal
import sys
import time

LOG_BYTES_MAX = 8 * 1024 * 1024
LOG_CHECK_SECONDS = 10.0
# A fast shutdown writes a checkpoint, so the first signal gets time; SIGKILL cannot fail.
STOP_SECONDS = 60.0
QUIT_SECONDS = 10.0

_CLONE_NEWUSER = 0x10000000
_PR_SET_PDEATHSIG = 1
_DEAF_TO = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def main(arguments: list[str]) -> int:
    identity, stop_name, log, scratch, *command = arguments
    try:
        return _run(identity, signal.Signals[stop_name], log, command)
    except OSError as error:
        print(f"failed {error}", flush=True)
        return 1
    finally:
        if scratch:
            _remove(scratch)


def _run(identity: str, stop: signal.Signals, log: str, command: list[str]) -> int:
    _become(identity)
    child, wake = _start(command, stop)
    print(f"started {child}", flush=True)
    code = _watch(child, wake, log)
    return _stop(child, wake, stop) if code is None else code


def _become(identity: str) -> None:
    kind, _, rest = identity.partition(":")
    if kind == "same":
        return
    user, group = (int(part) for part in rest.split(":"))
    if kind == "user":
        os.setgroups([])
        os.setgid(group)
        os.setuid(user)
        return
    outer_user, outer_group = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "unshare") or libc.unshare(_CLONE_NEWUSER):
        raise OSError(ctypes.get_errno(), "user namespaces are not allowed here")
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{user} {outer_user} 1")
    _write("/proc/self/gid_map", f"{group} {outer_group} 1")


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def _start(command: list[str], stop: signal.Signals) -> tuple[int, int]:
    """Return the process id of the command and a descriptor that turns readable when it ends.

    The command has been executed by then: before that, its process is as deaf as we are, and the
    signal that is to stop it would be lost.
    """
    wake, wake_end = os.pipe()
    executed, not_executed = os.pipe()  # the second end closes with the execution
    os.set_blocking(wake, False)
    os.set_blocking(wake_end, False)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the parent's thread may have blocked it
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
    for number in _DEAF_TO:
        signal.signal(number, signal.SIG_IGN)
    if not os.access(command[0], os.X_OK):
        message = f"user {os.geteuid()} may not run it"
        raise PermissionError(13, message, command[0])
    guard = os.getpid()
    child = os.fork()
    if child:
        os.close(not_executed)
        os.read(executed, 1)
        os.close(executed)
        return child, wake
    try:
        _execute(command, guard, stop)
    finally:
        os._exit(127)


def _execute(command: list[str], guard: int, stop: signal.Signals) -> None:
    for number in (*_DEAF_TO, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    if sys.platform == "linux":
        # If the guard itself is killed with SIGKILL, the kernel stops the command.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(stop))
        if os.getppid() != guard:
            return
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.execv(command[0], command)


def _watch(child: int, wake: int, log: str) -> int | None:
    """Return the command's exit code, or None once the pipe on stdin is closed.

    Ends only with the command or the parent, whichever is first.
    """
    while True:
        _shorten(log)
        ready, _, _ = select.select([0, wake], [], [], LOG_CHECK_SECONDS)
        if (code := _exit_code(child)) is not None:
            return code
        if wake in ready:
            _drain(wake)
        if 0 in ready and not os.read(0, 1):
            return None


def _stop(child: int, wake: int, stop: signal.Signals) -> int:
    for number, seconds in ((stop, STOP_SECONDS), (signal.SIGQUIT, QUIT_SECONDS)):
        os.kill(child, number)
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if (code := _exit_code(child)) is not None:
                return code
            select.select([wake], [], [], left)
            _drain(wake)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _exit_code(child: int) -> int | None:
    ended, status = os.waitpid(child, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _drain(wake: int) -> None:
    try:
        os.read(wake, 4096)
    except BlockingIOError:
        return


def _shorten(log: str) -> None:
    """Keep the newest half in `<log>.1` and empty the log, if it has outgrown its bound.

    The server appends, so it goes on at the new end; lines written between the copy and
    the cut are lost, which a log of an embedded server can bear.
    """
    try:
        size = os.stat(log).st_size
        if size <= LOG_BYTES_MAX:
            return
        with open(log, "rb") as current, open(f"{log}.1", "wb") as older:
            current.seek(size - LOG_BYTES_MAX // 2)
            older.write(current.read(LOG_BYTES_MAX // 2))
        os.truncate(log, 0)
    except OSError:
        # A full disk or a removed file must not take the server down.
        return


def _remove(directory: str) -> None:
    try:
        for name in os.listdir(directory):
            os.unlink(f"{directory}/{name}")
        os.rmdir(directory)
    except OSError:
        return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
