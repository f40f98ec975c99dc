"""Asks whether to go on."""

import asyncio
import sys

from progressor.cli.input.options import bad_input


async def confirmed(question: str) -> bool:
    """Ask on the terminal, and return whether the answer is yes; Ctrl-C ends the wait.

    Raises:
        InvalidRequestError: Nobody can be asked.
    """
    if not sys.stdin.isatty():
        raise bad_input("--yes", "must be given where standard input is not a terminal")
    # On stderr, because standard output may be read by a program.
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    # A blocking read, in a thread or not, would keep Ctrl-C waiting for Enter.
    loop, answered = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(sys.stdin, answered.set)
    try:
        await answered.wait()
    finally:
        loop.remove_reader(sys.stdin)
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
