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
from progressor.domain.processes.memo import MEMOS_BYTES_MAX, MEMOS_MAX
from progressor.sdk.codec.codecs import CheckedCodec, Codec, Payload, decoded
from progressor.sdk.codec.kinds import ANYTHING, Decoded, name_of
from progressor.sdk.codec.wire import Seconds, instant_to_wire, timedelta_of
from progressor.sdk.processor.links import StepLink
from progressor.sdk.processor.verdicts import Fail, text_of_error
from progressor.v1 import processor_service_pb2 as pb
from progressor.wire import fields

RESULT_NOT_STORED = "RESULT_NOT_STORED"
"""The reason of a step whose `once` has run a function, and whose result can never be stored."""

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
        # The keys of this attempt: of what runs, and of what has returned a result.
        self._used: set[str] = set()

    async def once(
        self, key: str, function: Callable[..., Any], args: tuple[Any, ...], kind: TypeForm[Decoded]
    ) -> Decoded:
        """Return the memo of a key, or run the function and store its result."""
        with self._using(key, kind):
            if key not in self._memos:
                self._check_room()
                if not self._link.is_ready:
                    await self._link.prepare()
                value = function(*args)
                if inspect.isawaitable(value):
                    value = await value
                self._memos[key] = await self._stored(key, value)
            return self._result(key, kind)

    def once_blocking(
        self, key: str, function: Callable[..., Any], args: tuple[Any, ...], kind: TypeForm[Decoded]
    ) -> Decoded:
        """Do as `once` does, in the thread of a plain handler."""
        self._link.expect_thread()
        with self._using(key, kind):
            if key not in self._memos:
                self._check_room()
                if not self._link.is_ready:
                    self._link.wait_for(self._link.prepare())
                value = function(*args)
                if inspect.iscoroutine(value):
                    value = self._link.wait_for(value)
                self._memos[key] = self._link.wait_for(self._stored(key, value))
            return self._result(key, kind)

    async def extend(self, by: Seconds) -> dt.datetime:
        """Move the deadline of the step, and return it."""
        seconds = timedelta_of(by, "step.extend: `seconds`")
        if seconds <= dt.timedelta(0):
            message = (
                f"step.extend: must be greater than 0 seconds, got {seconds.total_seconds():g}"
            )
            raise ValueError(message)
        self._link.check()
        # It never moves back, but is returned with an error of milliseconds.
        deadline = max(await self._link.extend(seconds), self._request.deadline.ToDatetime(dt.UTC))
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
        deadline, has_moved, has_warned = self._request.deadline.ToDatetime(dt.UTC), False, False
        while True:  # ends with the block or with the lease
            await asyncio.sleep(every.total_seconds())
            before, deadline = deadline, await self.extend(_AHEAD * every)
            # A deadline that stays is returned with an error of milliseconds. At first the step's
            # own timeout may be far ahead; after the first move it stays only at the maximum.
            moves = deadline - before > every / 2
            if has_moved and not moves and not has_warned:
                has_warned = True
                _log.warning(
                    "step.keep_alive: the step ends at %s by its namespace's step_timeout_max",
                    deadline,
                )
            has_moved = has_moved or moves

    @contextlib.contextmanager
    def _using(self, key: str, kind: object) -> Iterator[None]:
        """Use a key, which has no second use in this attempt, unless its function raises."""
        self._check(key, kind)
        if key in self._used:
            message = (
                f"step.once: the key {key!r} is already used in this step: "
                "give each effect a key of its own"
            )
            raise ValueError(message)
        self._used.add(key)
        try:
            yield
        except BaseException:
            self._used.discard(key)
            raise

    def _check(self, key: str, kind: object) -> None:
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
        if self._link.verdict is not None:
            raise self._link.verdict

    def _check_room(self) -> None:
        """Refuse before a function runs what would be refused after it."""
        if len(self._memos.keys() | self._used) > MEMOS_MAX:
            message = (
                f"step.once: the task has the results of {MEMOS_MAX} keys, which is the maximum"
            )
            raise ValueError(message)
        self._link.check()

    async def _stored(self, key: str, value: Payload) -> bytes:
        """Store the result of a function that has run, and return it encoded.

        Raises:
            Fail: It can never be stored. The next attempt would run the function again.
        """
        try:
            data = self._codec.encode(value)
        except Exception as error:
            raise self._not_stored(key, f"cannot be encoded: {text_of_error(error)}") from error
        left = MEMOS_BYTES_MAX - sum(map(len, self._memos.values()))
        # The engine has this limit too, but a message of any size must not reach it.
        if len(data) > left:
            limit = f"the results of a task may have {MEMOS_BYTES_MAX} in all, and {left} are left"
            raise self._not_stored(key, f"has {len(data)} bytes; {limit}")
        try:
            earlier = await self._link.remember(key, data)
        except errors.LeaseLostError:
            raise
        except errors.InvalidRequestError as error:
            what = "; ".join(it.description for it in error.violations)
            raise self._not_stored(key, f"cannot be stored: {what}") from error
        except errors.ProgressorError as error:
            raise self._not_stored(key, f"cannot be stored: {text_of_error(error)}") from error
        return data if earlier is None else earlier

    def _not_stored(self, key: str, what: str) -> Fail:
        message = f"step.once: the result of the key {key!r} {what}"
        self._link.verdict = Fail(message, reason=RESULT_NOT_STORED)
        return self._link.verdict

    def _result(self, key: str, kind: TypeForm[Decoded]) -> Decoded:
        try:
            return decoded(self._codec, self._memos[key], kind)
        except ValueError as error:
            what = f"the result of the key {key!r} is not a `{name_of(kind)}`"
            message = f"step.once: {what}: {error}"
            raise ValueError(message) from error


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
    interval = timedelta_of(every, "step.keep_alive: `every`")
    if interval <= dt.timedelta(0):
        message = f"step.keep_alive: `every` must be greater than 0, got {interval}"
        raise ValueError(message)
    return interval
