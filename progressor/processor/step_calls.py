"""What steps ask of the engine while they run: on their stream, or of any replica (StepService)."""

import asyncio
import dataclasses
import datetime as dt
from collections.abc import Callable
from typing import Any, Protocol

from google.protobuf import message
from grpc import aio

from progressor import errors
from progressor.domain.processes.memo import StepLease
from progressor.domain.processes.task import RunningTask
from progressor.internal.v1 import frames_pb2
from progressor.v1 import processor_service_pb2 as pb
from progressor.wire import fields as wire

CALLS_MAX = 10_000
"""Calls of one stream in hand; further ones are OVERLOADED."""

_AGAIN_SECONDS = 1.0
"""Until a deadline is read again that could not be read."""

_RETRY_AFTER = dt.timedelta(seconds=1)

Result = frames_pb2.RawStepCallResult


class RunningSteps(Protocol):
    """What serves the calls, whichever replica runs the step."""

    async def remember(self, lease: StepLease, memo_key: str, value: bytes) -> bytes | None: ...

    async def extend(self, lease: StepLease, by: dt.timedelta) -> dt.timedelta: ...

    async def time_left(self, lease: StepLease) -> dt.timedelta | None: ...

    def deadline_in(self, left: dt.timedelta) -> dt.datetime: ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepCalls:
    """Serves calls; ``status`` returns an error as a serialized google.rpc.Status."""

    running_steps: RunningSteps
    status: Callable[[errors.ProgressorError], bytes]

    async def serve(
        self, call: frames_pb2.RawStepCall, task: RunningTask
    ) -> tuple[Result, dt.timedelta | None]:
        """Return the result of a call, and how far away its step's deadline is if that moved."""
        result, left = Result(call_id=call.call_id), None
        try:
            match call.WhichOneof("request"):
                case "remember":
                    result.remember = await self._remember(call.remember, lease_of(task))
                case "extend":
                    by = wire.duration_to_timedelta(_read(pb.ExtendCall, call.extend).by, "by")
                    left = await self.running_steps.extend(lease_of(task), by)
                    extended = pb.ExtendResult()
                    deadline = self.running_steps.deadline_in(left)
                    wire.fill_timestamp(extended.deadline, deadline)
                    result.extend = extended.SerializeToString()
                case _:
                    wire.refuse("calls.request", "must be set")
        except errors.ProgressorError as error:
            result.error = self.status(error)
        return result, left

    def refuse(self, call: frames_pb2.RawStepCall, *, overloaded: bool) -> Result:
        """Return the result of a call whose step is over, or of one too many."""
        error: errors.ProgressorError = errors.LeaseLostError()
        if overloaded:
            error = errors.OverloadedError(f"{CALLS_MAX} calls are in hand", _RETRY_AFTER)
        return Result(call_id=call.call_id, error=self.status(error))

    async def _remember(self, packed: bytes, lease: StepLease) -> bytes:
        asked = _read(pb.RememberCall, packed)
        earlier = await self.running_steps.remember(lease, asked.key, asked.value)
        return pb.RememberResult(earlier_value=earlier).SerializeToString()


class CallDeadline:
    """Cancels the call of a step at its deadline, unless StepService has moved that."""

    def __init__(
        self, call: aio.Call, task: RunningTask, calls: StepCalls, group: asyncio.TaskGroup
    ) -> None:
        self.has_passed = False
        self._call, self._lease = call, lease_of(task)
        self._group: asyncio.TaskGroup = group
        self._running_steps = calls.running_steps
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def start(self, deadline: float) -> None:
        """Look at the deadline when it comes, by the event loop's clock."""
        self._timer = self._loop.call_at(deadline, self._come)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _come(self) -> None:
        self._group.create_task(self._look(), name=f"deadline of {self._lease.task_id}")

    async def _look(self) -> None:
        try:
            left = await self._running_steps.time_left(self._lease)
        except errors.StorageError:
            # If this lasts, the heartbeat ends the step.
            left = dt.timedelta(seconds=_AGAIN_SECONDS)
        if self._call.done():
            return
        if left is not None and left > dt.timedelta(0):
            self.start(self._loop.time() + left.total_seconds())
            return
        self.has_passed = True
        self._call.cancel()


def lease_of(task: RunningTask) -> StepLease:
    return StepLease(key=task.key, task_id=task.task_id, token=task.token)


def _read(kind: type[Any], packed: bytes) -> Any:  # noqa: ANN401  # of that kind
    try:
        return kind.FromString(packed)
    except message.DecodeError:
        wire.refuse("calls.request", f"is not a {kind.DESCRIPTOR.name}")
