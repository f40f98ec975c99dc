"""Asks whether to go on."""

import asyncio
import sys

from progressor.cli.input.options import bad_input

_NOTHING = "Nothing was done."


async def confirmed(question: str) -> bool:
    """Ask on the terminal, and return whether the answer is yes; if not, say that nothing was done.

    Raises:
        InvalidRequestError: The command has no terminal to ask on.
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
    except asyncio.CancelledError:
        sys.stderr.write(f"\n{_NOTHING}\n")
        raise
    finally:
        loop.remove_reader(sys.stdin)
    answer = sys.stdin.readline()
    if answer.strip().lower() in {"y", "yes"}:
        return True
    # Ctrl-D leaves the cursor behind the question.
    sys.stderr.write(f"{_NOTHING}\n" if answer else f"\n{_NOTHING}\n")
    return False
