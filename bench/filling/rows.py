"""The rows of a plan, table by table, in the order of the slots.

Sizes: args of 64 to 200 bytes, events of 96 to 160, an aux_state of about 100, an idempotency key
on every start, metadata on every second process; all bytes are random.
"""

import array
import dataclasses
import datetime as dt
import functools
import random
import zlib
from collections.abc import Callable, Iterator, Sequence

from bench.filling.plan import FAILURES, Plan
from bench.filling.templates import FIELD, INT8, KEY, Field, field, int4, int8, jsonb, key_fields
from bench.filling.templates import row as template
from progressor.domain.processes.process import SLOT_COUNT, process_key

COLUMNS = {
    "processes": (
        "slot, namespace, process_id, status, previous_status, detail, aux_state, metadata,"
        " corrupted_by, created_at, status_changed_at, last_event_id, init_task_id, result,"
        " finished_at, broken_at, failure_id, failure_reason"
    ),
    "tasks": (
        "slot, namespace, process_id, task_id, task_type, status, attempt_count, created_at,"
        " scheduled_at, first_started_at, started_at, finished_at, token, first_event_id,"
        " event_count, args, idempotency_key, fingerprint, response, error_code, error_reason,"
        " error_message, error_rejected"
    ),
    "events": (
        "slot, namespace, process_id, event_id, task_id, occurred_at, format_version, payload"
    ),
    "schedule": (
        "slot, namespace, process_id, task_id, task_type, status, due_at, attempt, replica_id"
    ),
}
"""The columns of each table in the order of the rows; the others keep their defaults."""

_EPOCH = dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_POOL_BYTES = 1 << 20
_STRIDE = 4099
_CUSTOMERS = 10
"""Processes with metadata per customer, which is what one would look for."""
_STEP_MICROSECONDS = 4000
_AGE = 1_000_000
"""Microseconds from one process created to the next: 10 M are four months."""
_FAR = 30 * 24 * 3600 * 1_000_000
_AUX_BYTES, _RESPONSE_BYTES, _RESULT_BYTES, _FINGERPRINT_BYTES = 100, 24, 48, 32

_FALSE = b"\0"


def _task(task_type: bytes, *, key: Field, fingerprint: Field, first: int, count: int) -> bytes:
    """Return the template of a finished task; holes: key, id, 4 x begun, end, id, args .."""
    return template((
        KEY, INT8, task_type, b"finished", int4(1), INT8, INT8, INT8, INT8, INT8, INT8,
        int8(first) if count else None, int4(count), FIELD, key, fingerprint, FIELD,
        None, None, None, None,
    ))  # fmt: skip


_INIT = _task(b"init", key=FIELD, fingerprint=FIELD, first=1, count=1)
_CALLS = {
    (first, count): _task(b"call", key=None, fingerprint=None, first=first, count=count)
    for first, count in ((2, 1), (3, 1), (2, 2))
}
_BREAKING = template((
    KEY, INT8, b"call", b"error", int4(1), INT8, INT8, INT8, INT8, INT8, INT8, None, int4(0), FIELD,
    None, None, None, int4(13), FIELD, FIELD, _FALSE,
))  # fmt: skip
_WAITING = template((
    KEY, INT8, b"timeout", b"waiting", int4(0), INT8, INT8, None, None, None, None, None, int4(0),
    FIELD, None, None, None, None, None, None, None,
))  # fmt: skip
_LONG_TASK = template((
    KEY, INT8, b"call", b"finished", int4(1), INT8, INT8, INT8, INT8, INT8, INT8, INT8, int4(1),
    FIELD, None, None, FIELD, None, None, None, None,
))  # fmt: skip
_EVENT = template((KEY, INT8, INT8, INT8, int4(1), FIELD))
_SCHEDULED = template((KEY, INT8, b"timeout", b"waiting", INT8, int4(0), int8(0)))


def _process(status: bytes, *, previous: bytes, events: Field = None) -> bytes:
    is_broken = status == b"error"
    return template((
        KEY, status, previous, FIELD if is_broken else None, FIELD, FIELD,
        INT8 if is_broken else None, INT8, INT8, int8(3) if events is None else events, INT8,
        FIELD if status == b"finished" else None,
        INT8 if status == b"finished" else None,
        *((INT8, FIELD, FIELD) if is_broken else (None, None, None)),
    ))  # fmt: skip


_RUNNING = _process(b"running", previous=b"init")
_FINISHED = _process(b"finished", previous=b"running")
_BROKEN = _process(b"error", previous=b"running")
_LONG = _process(b"running", previous=b"init", events=INT8)


def numbers_by_slot(plan: Plan) -> list[Sequence[int]]:
    """Return the numbers of each slot in the order of their process ids."""
    slots = [array.array("I") for _ in range(SLOT_COUNT)]
    crc, mask = zlib.crc32, SLOT_COUNT - 1
    seed = crc(f"{plan.prefix}-".encode(), crc(plan.namespace.encode()))
    for number in range(plan.process_count):
        slots[crc(b"%d" % number, seed) & mask].append(number)
    return [array.array("I", sorted(numbers, key=str)) for numbers in slots]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rows:
    """Makes rows; task ids, and tokens with them, begin at `first_task_id`.

    ``failure_ids`` are the groups of `FAILURES`.
    """

    plan: Plan
    slots: Sequence[Sequence[int]]
    first_task_id: int
    failure_ids: Sequence[str]
    now: dt.datetime

    def of(self, table: str) -> Iterator[bytes]:
        """Yield the rows of a table, one slot at a time."""
        of_one: Callable[[int, bytes], bytes] = {
            "processes": self._process,
            "tasks": self._tasks,
            "events": self._events,
            "schedule": self._scheduled,
        }[table]
        namespace, prefix = self.plan.namespace.encode(), self.plan.prefix.encode()
        for slot, numbers in enumerate(self.slots):
            yield b"".join([
                of_one(number, key_fields(slot, namespace, b"%b-%d" % (prefix, number)))
                for number in numbers
            ])  # fmt: skip
        if self.plan.long_event_count:
            yield self._long(table)

    def row_count(self, table: str) -> int:
        plan, long = self.plan, self.plan.long_event_count
        return {
            "processes": plan.process_count + bool(long),
            "tasks": 3 * plan.process_count + long,
            "events": 3 * plan.process_count + long,
            "schedule": plan.timer_count + plan.due_count,
        }[table]

    @functools.cached_property
    def _pool(self) -> bytes:
        return random.Random(self.plan.seed).randbytes(_POOL_BYTES + 256)

    @functools.cached_property
    def _now(self) -> int:
        return (self.now - _EPOCH) // _MICROSECOND

    @functools.cached_property
    def _creation_step(self) -> int:
        return self.plan.creation_step()

    def _created_at(self, number: int) -> int:
        count = self.plan.process_count
        return self._now - _AGE * (count - number * self._creation_step % count)

    def _bytes(self, number: int, size: int) -> bytes:
        """Return random bytes as a field, different ones for each number."""
        offset = number * _STRIDE & (_POOL_BYTES - 1)
        return field(self._pool[offset : offset + size])

    def _args(self, number: int, ordinal: int) -> bytes:
        """Return args, which make the bench's processor record one event (bench/parts/plans.py)."""
        offset = (3 * number + ordinal) * _STRIDE & (_POOL_BYTES - 1)
        size = 63 + (37 * number + 59 * ordinal) % 137
        return field(b"e" + self._pool[offset : offset + size])

    def _is_timed(self, number: int) -> bool:
        return self.plan.first_timed <= number < self.plan.running_count

    def _due_at(self, number: int) -> bytes:
        ordinal = number - self.plan.callable_count
        if ordinal < 0:
            return int8(self._now + _FAR + 1000 * number)
        return int8(self._now + self.plan.due_after // _MICROSECOND + ordinal)

    def _tasks(self, number: int, key: bytes) -> bytes:
        first = self.first_task_id + 3 * number
        ids = [int8(first), int8(first + 1), int8(first + 2)]
        begun = self._created_at(number)
        moments = [int8(begun + each * _STEP_MICROSECONDS) for each in range(6)]
        at, done = moments[0], moments[1]
        response = self._bytes(number, _RESPONSE_BYTES)
        init = _INIT % (
            key, ids[0], at, at, at, at, done, ids[0], self._args(number, 0),
            field(b"start-%d" % number), self._bytes(number + 1, _FINGERPRINT_BYTES), response,
        )  # fmt: skip
        is_timed = self._is_timed(number)
        is_broken = number >= self.plan.running_count + self.plan.finished_count
        second = (2, 2) if is_timed or is_broken else (2, 1)
        at, done = moments[2], moments[3]
        args = self._args(number, 1)
        call = _CALLS[second] % (key, ids[1], at, at, at, at, done, ids[1], args, response)
        at, done, args = moments[4], moments[5], self._args(number, 2)
        if is_timed:
            return init + call + _WAITING % (key, ids[2], moments[3], self._due_at(number), args)
        if is_broken:
            _, *failure = self._failure(number)
            rest = (at, at, at, at, done, ids[2], args, *failure)
            return init + call + _BREAKING % (key, ids[2], *rest)
        third = _CALLS[3, 1] % (key, ids[2], at, at, at, at, done, ids[2], args, response)
        return init + call + third

    def _events(self, number: int, key: bytes) -> bytes:
        first = self.first_task_id + 3 * number
        begun = self._created_at(number) + _STEP_MICROSECONDS
        of_two = first + 1 if self._is_timed(number) or self._is_broken(number) else first + 2
        rows = []
        for event_id, task_id in enumerate((first, first + 1, of_two), start=1):
            at = begun + 2 * _STEP_MICROSECONDS * (task_id - first)
            size = 96 + (37 * number + 29 * event_id) % 65
            payload = self._bytes(3 * number + event_id + 7, size)
            rows.append(_EVENT % (key, int8(event_id), int8(task_id), int8(at), payload))
        return b"".join(rows)

    def _is_broken(self, number: int) -> bool:
        return number >= self.plan.running_count + self.plan.finished_count

    def _process(self, number: int, key: bytes) -> bytes:
        first = self.first_task_id + 3 * number
        created_at = self._created_at(number)
        at, running_at = int8(created_at), int8(created_at + _STEP_MICROSECONDS)
        ended_at = int8(created_at + 5 * _STEP_MICROSECONDS)
        aux_state = self._bytes(number + 5, _AUX_BYTES)
        metadata = _metadata(number)
        init = int8(first)
        if number < self.plan.running_count:
            return _RUNNING % (key, aux_state, metadata, at, running_at, init)
        if not self._is_broken(number):
            result = self._bytes(number + 9, _RESULT_BYTES)
            return _FINISHED % (key, aux_state, metadata, at, ended_at, init, result, ended_at)
        failure_id, reason, detail = self._failure(number)
        return _BROKEN % (
            key, detail, aux_state, metadata, int8(first + 2), at, ended_at, init, ended_at,
            failure_id, reason,
        )  # fmt: skip

    def _failure(self, number: int) -> tuple[bytes, bytes, bytes]:
        """Return as fields what broke a process: its group, reason and message."""
        kind = number % len(FAILURES)
        failure_id, reason, message = map(str.encode, (self.failure_ids[kind], *FAILURES[kind]))
        return field(failure_id), field(reason), field(message)

    def _scheduled(self, number: int, key: bytes) -> bytes:
        if not self._is_timed(number):
            return b""
        task_id = int8(self.first_task_id + 3 * number + 2)
        return _SCHEDULED % (key, task_id, self._due_at(number))

    def _long(self, table: str) -> bytes:
        """Return the rows of the process with a long history."""
        plan = self.plan
        name = process_key(plan.namespace, f"{plan.prefix}-long")
        key = key_fields(name.slot, plan.namespace.encode(), name.process_id.encode())
        first = self.first_task_id + 3 * plan.process_count
        count = plan.long_event_count
        begun = self._now - 2 * count * _STEP_MICROSECONDS
        if table == "schedule":
            return b""
        if table == "processes":
            aux_state, at = self._bytes(5, _AUX_BYTES), int8(begun)
            return _LONG % (key, aux_state, _metadata(0), at, at, int8(count), int8(first))
        rows = []
        for ordinal in range(count):
            task_id = int8(first + ordinal)
            at = int8(begun + 2 * ordinal * _STEP_MICROSECONDS)
            done = int8(begun + (2 * ordinal + 1) * _STEP_MICROSECONDS)
            if table == "events":
                payload = self._bytes(ordinal, 128)
                rows.append(_EVENT % (key, int8(ordinal + 1), task_id, done, payload))
                continue
            args, response = self._args(ordinal, 1), self._bytes(ordinal, _RESPONSE_BYTES)
            rest = (task_id, at, at, at, at, done, task_id)
            if ordinal:
                rows.append(_LONG_TASK % (key, *rest, int8(ordinal + 1), args, response))
            else:
                fingerprint = self._bytes(0, _FINGERPRINT_BYTES)
                rows.append(_INIT % (key, *rest, args, field(b"start"), fingerprint, response))
        return b"".join(rows)


def _metadata(number: int) -> bytes:
    if number % 2:
        return b"\xff\xff\xff\xff"
    customer = number // (2 * _CUSTOMERS)
    return field(jsonb(b'{"customer": "c-%d", "region": "eu-%d"}' % (customer, number % 7)))
