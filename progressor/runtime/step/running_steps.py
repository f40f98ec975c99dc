"""What a running step asks for before it is settled, on its stream or by StepService."""

import datetime as dt

from progressor import errors
from progressor.clock import Clock
from progressor.domain.processes.memo import (
    MEMOS_BYTES_MAX,
    MEMOS_MAX,
    Extend,
    Remember,
    StepLease,
)
from progressor.storage.namespaces.namespaces import Namespaces
from progressor.storage.steps.step_writes import StepWrites
from progressor.wire import fields as wire


class RunningSteps:
    """Serves any step, wherever it runs: the lease in the database decides.

    Every method raises LeaseLostError once the lease is lost, InvalidRequestError for a request
    that is at fault, and StorageUnavailableError or OverloadedError for one to be repeated.
    """

    def __init__(self, writes: StepWrites, namespaces: Namespaces, clock: Clock) -> None:
        self._writes, self._namespaces, self._clock = writes, namespaces, clock

    async def remember(self, lease: StepLease, memo_key: str, value: bytes) -> bytes | None:
        """Store a memo; return the value that it has already, None: it is stored."""
        namespace = await self._namespaces.lookup(lease.key.namespace)
        for fault in wire.id_faults(memo_key):
            wire.refuse("key", fault)
        wire.check_payload(value, "value", namespace.payload_bytes_max)
        memo = Remember(
            key=lease.key, task_id=lease.task_id, token=lease.token, memo_key=memo_key, value=value
        )
        stored = await self._writes.remember(memo)
        if stored is None:
            raise errors.LeaseLostError(lease.key.process_id, lease.task_id)
        if stored.verdict == "too_many":
            wire.refuse(
                "key", f"the task has the results of {MEMOS_MAX} keys, which is the maximum"
            )
        if stored.verdict == "too_large":
            limit = f"the results of a task may have {MEMOS_BYTES_MAX} bytes in all"
            wire.refuse("value", f"{limit}, and fewer than {len(value)} are left")
        return stored.value

    async def extend(self, lease: StepLease, by: dt.timedelta) -> dt.timedelta:
        """Move the deadline of a step to `by` from now; return how far away it is then."""
        namespace = await self._namespaces.lookup(lease.key.namespace)
        if by <= dt.timedelta(0):
            wire.refuse("by", f"must be greater than 0, got {by.total_seconds():g} s")
        extend = Extend(
            key=lease.key, task_id=lease.task_id, token=lease.token,
            by=min(by, namespace.step_timeout_max), longest=namespace.step_timeout_max,
        )  # fmt: skip
        left = await self._writes.extend(extend)
        if left is None:
            raise errors.LeaseLostError(lease.key.process_id, lease.task_id)
        return left

    async def time_left(self, lease: StepLease) -> dt.timedelta | None:
        """Return how far away the deadline of a step is; None: its lease is lost."""
        return await self._writes.time_left(lease)

    def deadline_in(self, left: dt.timedelta) -> dt.datetime:
        """Return the instant that is so far away, by this replica's clock."""
        return self._clock.now() + left
