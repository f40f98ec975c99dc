"""What is left for the garbage collector: objects that only a cycle keeps."""

import asyncio
import collections
import contextlib
import gc
import types
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path

import progressor

_ENGINE = str(Path(progressor.__file__).parent)
_OF_CLIENTS = str(Path(_ENGINE, "sdk"))
OF_GRPC_SERVERS = frozenset({"RPCState", "_ServicerContext"})
"""What grpc.aio makes for each call that a server of this process serves."""

_TURNS = 20
_TURN_SECONDS = 0.01


async def left_by(ask: Callable[[], Awaitable[None]], *, rounds: int) -> Mapping[str, int]:
    """Return what the engine in this process leaves to the collector when it is asked so often.

    It is asked once before, for what is made once and kept.
    """
    await ask()
    await _come_to_rest()
    gc.collect()
    with _collecting_nothing():
        for _ in range(rounds):
            await ask()
        await _come_to_rest()
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        gc.set_debug(0)
        names = collections.Counter(name for it in gc.garbage if (name := _name_of(it)))
        gc.garbage.clear()
    gc.collect()
    return names


@contextlib.contextmanager
def _collecting_nothing() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.set_debug(0)
        gc.enable()


async def _come_to_rest() -> None:
    """Let the server finish what its client has left: no client learns when that is."""
    for _ in range(_TURNS):
        await asyncio.sleep(_TURN_SECONDS)


def _name_of(thing: object) -> str:
    """Return what a thing of the engine, or of a request to it, is called; empty for others."""
    if isinstance(thing, types.FrameType):
        code = thing.f_code
        is_ours = code.co_filename.startswith(_ENGINE)
        return code.co_name if is_ours and not code.co_filename.startswith(_OF_CLIENTS) else ""
    kind = type(thing)
    if kind.__name__ in OF_GRPC_SERVERS:
        return kind.__name__
    is_ours = kind.__module__.startswith("progressor.")
    of_clients = ("progressor.sdk", "progressor.v1")
    return kind.__qualname__ if is_ours and not kind.__module__.startswith(of_clients) else ""
