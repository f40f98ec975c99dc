"""What a handler asks of the engine while it runs: `Step.once`, `extend` and `keep_alive`."""

import asyncio
import contextlib
import datetime as dt
import inspect
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from typing_extensions import TypeForm

from progressor import errors
from progressor.domain.processes.memo import MEMOS_MAX
from progressor.sdk.codec.codecs import CheckedCodec, Codec, Payload, decoded
from progressor.sdk.codec.kinds import ANYTHING, Decoded, name_of
from progressor.sdk.codec.wire import Seconds, instant_to_wire, timedelta_of
from progressor.sdk.processor.links import StepLink
from progressor.v1 import processor_service_pb2 as pb
from progressor.wire import fields

KEEP_ALIVE_SECONDS = 10.0
"""How often `keep_alive` moves the deadline, by default."""

_AHEAD = 3
"""How many of its intervals `keep_alive` asks for: one may be late."""

_log = logging.getLogger(__name__)


class StepRequests:
    """The requests of one step. It is created when the handler makes the first one."""

    def __init__(self, request: pb.ProcessRequest, codec: Codec, link: StepLink) -> None:
        self._request, self._codec, self._link = request, codec, link
        self._memos: dict[str, bytes] = dict(request.task.memos)
        self._begun: set[str] = set()

    async def once(
        self, key: str, function: Callable[..., Any], args: tuple[Any, ...], kind: TypeForm[Decoded]
    ) -> Decoded:
        """Return the memo of a key, or run the function and store its result."""
        if not self._is_known(key, kind):
            with self._running(key):
                value = function(*args)
                if inspect.isawaitable(value):
                    value = await value
                self._memos[key] = await self._stored(key, value)
        return decoded(self._codec, self._memos[key], kind)

    def once_blocking(
        self, key: str, function: Callable[..., Any], args: tuple[Any, ...], kind: TypeForm[Decoded]
    ) -> Decoded:
        """Do as `once` does, in the thread of a plain handler."""
        self._link.expect_thread()
        if not self._is_known(key, kind):
            with self._running(key):
                value = function(*args)
                if inspect.iscoroutine(value):
                    value = self._link.wait_for(value)
                self._memos[key] = self._link.wait_for(self._stored(key, value))
        return decoded(self._codec, self._memos[key], kind)

    async def extend(self, by: Seconds) -> dt.datetime:
        """Move the deadline of the step, and return it."""
        seconds = timedelta_of(by)
        if seconds <= dt.timedelta(0):
            message = (
                f"step.extend: must be greater than 0 seconds, got {seconds.total_seconds():g}"
            )
            raise ValueError(message)
        self._link.check()
        deadline = await self._link.extend(seconds)
        self._request.deadline.CopyFrom(instant_to_wire(deadline))
        return deadline

    @contextlib.asynccontextmanager
    async def keep_alive(self, every: Seconds) -> AsyncIterator[None]:
        """Move the deadline again and again; LeaseLostError ends the block."""
        every = _interval(every)
        await self.extend(_AHEAD * every)
        handler, lost = asyncio.current_task(), asyncio.Event()
        assert handler is not None, "a handler runs in a task"

        def end(extending: asyncio.Task[None]) -> None:
            if not extending.cancelled() and extending.exception() is not None:
                lost.set()
                handler.cancel()

        extending = asyncio.create_task(self._extend_again(every), name="keep a step alive")
        extending.add_done_callback(end)
        try:
            yield
        except asyncio.CancelledError:
            if lost.is_set() and not handler.uncancel():
                raise errors.LeaseLostError from extending.exception()
            raise
        finally:
            extending.remove_done_callback(end)
            extending.cancel()

    @contextlib.contextmanager
    def keep_alive_blocking(self, every: Seconds) -> Iterator[None]:
        """Move the deadline again and again, on the event loop."""
        every = _interval(every)
        self.extend_blocking(_AHEAD * every)
        extending = self._link.begin(self._extend_again(every))
        try:
            yield
        finally:
            extending.cancel()

    def extend_blocking(self, by: Seconds) -> dt.datetime:
        """Do as `extend` does, in the thread of a plain handler."""
        self._link.expect_thread()
        self._link.check()
        return self._link.wait_for(self.extend(by))

    async def _extend_again(self, every: dt.timedelta) -> None:
        deadline, has_moved = self._request.deadline.ToDatetime(dt.UTC), False
        while True:  # ends with the block, with the lease or at the longest deadline
            await asyncio.sleep(every.total_seconds())
            before, deadline = deadline, await self.extend(_AHEAD * every)
            # At first the step's own timeout may be far ahead.
            has_moved, had_moved = deadline > before, has_moved
            if had_moved and not has_moved:
                _log.warning(
                    "step.keep_alive: the step ends at %s by its namespace's step_timeout_max",
                    deadline,
                )
                return

    def _is_known(self, key: str, kind: object) -> bool:
        """Return whether a key has a memo; raise an error if it cannot get one."""
        if not isinstance(key, str):
            message = f"step.once: the key must be a str, got {key!r}"
            raise TypeError(message)
        for fault in fields.id_faults(key):
            message = f"step.once: the key {fault}"
            raise ValueError(message)
        why = self._codec.unreadable(kind) if isinstance(self._codec, CheckedCodec) else None
        if kind is not ANYTHING and why is not None:
            message = f"step.once: the result cannot be a `{name_of(kind)}`: {why}"
            raise TypeError(message)
        return key in self._memos

    @contextlib.contextmanager
    def _running(self, key: str) -> Iterator[None]:
        """Guard the run of a function: what could be refused after it is refused before."""
        if key in self._begun:
            message = f"step.once: the function of the key {key!r} is running already"
            raise ValueError(message)
        if len(self._memos) + len(self._begun) >= MEMOS_MAX:
            message = f"step.once: the task has {MEMOS_MAX} memos already, which is the maximum"
            raise ValueError(message)
        self._link.check()
        self._begun.add(key)
        try:
            yield
        finally:
            self._begun.discard(key)

    async def _stored(self, key: str, value: Payload) -> bytes:
        data = self._codec.encode(value)
        earlier = await self._link.remember(key, data)
        return data if earlier is None else earlier


class BlockingRequests:
    """What a plain handler asks of the engine: it waits where an async one awaits."""

    def __init__(self, requests: StepRequests) -> None:
        self._requests = requests

    def once(
        self,
        key: str,
        function: Callable[..., Any],
        *args: Any,  # noqa: ANN401  # those of the function
        type: TypeForm[Decoded] = ANYTHING,  # noqa: A002  # as elsewhere in the SDK
    ) -> Decoded:
        """Run a function once in all attempts of the task; see `Step.once`."""
        return self._requests.once_blocking(key, function, args, type)

    def extend(self, seconds: Seconds) -> dt.datetime:
        """Give the step more time; see `Step.extend`."""
        return self._requests.extend_blocking(seconds)

    def keep_alive(
        self, every: Seconds = KEEP_ALIVE_SECONDS
    ) -> contextlib.AbstractContextManager[None]:
        """Give the step more time again and again while a ``with`` block runs.

        A lost lease is noticed by the next `once` or `extend`; see `Step.keep_alive`.
        """
        return self._requests.keep_alive_blocking(every)


def _interval(every: Seconds) -> dt.timedelta:
    interval = timedelta_of(every)
    if interval <= dt.timedelta(0):
        message = f"step.keep_alive: `every` must be greater than 0, got {interval}"
        raise ValueError(message)
    return interval
