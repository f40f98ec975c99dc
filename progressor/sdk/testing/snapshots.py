"""Stored processes for tests: a snapshot of a client, or the output of ``progressor get``."""

import dataclasses
import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from progressor.sdk.codec.codecs import Codec, Payload
from progressor.sdk.codec.wire import instant_to_wire, object_to_wire
from progressor.sdk.processor.processor import Processor
from progressor.sdk.processor.step import State
from progressor.sdk.values.processes import ProcessStatus, Snapshot, TaskType, Timer
from progressor.v1 import types_pb2

Stored: TypeAlias = Snapshot[Any] | Mapping[str, Any] | str | bytes
"""What `Client.get` returned, or the document of ``progressor get --json``, as text or parsed."""

_ABSENT = msgspec.Raw(b"null")


class _Event(msgspec.Struct, frozen=True):
    event_id: int
    occurred_at: dt.datetime
    task_id: int
    payload: msgspec.Raw = _ABSENT
    payload_base64: bytes = b""
    format_version: int = 0
    metadata: dict[str, Any] = {}


class _Process(msgspec.Struct, frozen=True):
    process_id: str
    status: ProcessStatus
    created_at: dt.datetime
    status_changed_at: dt.datetime
    last_event_id: int
    previous_status: ProcessStatus = ProcessStatus.UNSPECIFIED
    detail: str = ""
    corrupted_by: int | None = None
    state: msgspec.Raw = _ABSENT
    state_base64: bytes = b""
    state_version: int = 0
    metadata: dict[str, Any] = {}
    result: msgspec.Raw = _ABSENT
    result_base64: bytes = b""


class _Timer(msgspec.Struct, frozen=True):
    task_id: int
    type: TaskType
    due_at: dt.datetime
    name: str = ""


class _Document(msgspec.Struct, frozen=True):
    process: _Process
    history: list[_Event] = []
    timer: _Timer | None = None
    later_timers: list[_Timer] = []


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StoredProcess:
    """A process with its encoded payloads, and as much of its history as the snapshot has."""

    process: types_pb2.Process
    history: list[types_pb2.Event]
    timers: Sequence[Timer | _Timer]

    @property
    def changed_at(self) -> dt.datetime:
        """The latest instant at which the process is known to have changed."""
        instants = [self.process.status_changed_at, *(it.occurred_at for it in self.history)]
        return max(it.ToDatetime(dt.UTC) for it in instants)

    @property
    def last_task_id(self) -> int:
        """The highest id of a task in it; 0: it has none."""
        timer_ids = (it.task_id for it in self.timers)
        event_ids = (it.task_id for it in self.history)
        return max(self.process.corrupted_by, *timer_ids, *event_ids, 0)


def stored_process(snapshot: Stored, codec: Codec) -> StoredProcess:
    """Return a stored process; `codec` encodes the decoded payloads of a `Snapshot`.

    Raises:
        ValueError: The document is not one of ``progressor get``; the message names the field.
    """
    if isinstance(snapshot, Snapshot):
        return _of_snapshot(snapshot, codec)
    text = msgspec.json.encode(snapshot) if isinstance(snapshot, Mapping) else snapshot
    document = msgspec.json.decode(text, type=_Document)
    it = document.process
    process = _process(it, _bytes(it.state, it.state_base64), _bytes(it.result, it.result_base64))
    history = [
        _event(event, _bytes(event.payload, event.payload_base64)) for event in document.history
    ]
    first = () if document.timer is None else (document.timer,)
    timers = (*first, *document.later_timers)
    return StoredProcess(process=process, history=history, timers=timers)


def upgraded_states(
    processor: Processor[State], snapshots: Iterable[Stored]
) -> dict[str, State | None]:
    """Return the states of stored processes, by process id, as steps of the processor read them.

    This tests the upgrades of a processor against states from production.

    Raises:
        ExceptionGroup: States that cannot be read, each with a note that names its process.
        ValueError: An upgrade is missing, or a document is not one of ``progressor get``.
    """
    processor.check_upgrades()
    states: dict[str, State | None] = {}
    failures: list[Exception] = []
    for snapshot in snapshots:
        process = stored_process(snapshot, processor.codec).process
        try:
            states[process.process_id] = processor.decode_state(
                process.aux_state, process.state_version
            )
        except Exception as error:  # noqa: BLE001  # whatever an upgrade of the user's raises
            error.add_note(f"process {process.process_id!r}")
            failures.append(error)
    if failures:
        count = len(failures) + len(states)
        message = f"{len(failures)} of {count} states cannot be read by {processor.name!r}"
        raise ExceptionGroup(message, failures)
    return states


def _of_snapshot(snapshot: Snapshot[Any], codec: Codec) -> StoredProcess:
    process = snapshot.process
    return StoredProcess(
        process=_process(process, _encoded(process.state, codec), _encoded(process.result, codec)),
        history=[_event(it, _encoded(it.payload, codec)) for it in snapshot.history],
        timers=tuple(snapshot.timers.values()),
    )


def _process(process: Any, state: bytes, result: bytes) -> types_pb2.Process:  # noqa: ANN401  # of either form
    return types_pb2.Process(
        process_id=process.process_id,
        status=types_pb2.ProcessStatus.ValueType(process.status.number),
        previous_status=types_pb2.ProcessStatus.ValueType(process.previous_status.number),
        detail=process.detail,
        aux_state=state,
        state_version=process.state_version,
        metadata=object_to_wire(process.metadata) if process.metadata else None,
        corrupted_by=process.corrupted_by,
        created_at=instant_to_wire(process.created_at),
        status_changed_at=instant_to_wire(process.status_changed_at),
        last_event_id=process.last_event_id,
        result=result,
    )


def _event(event: Any, payload: bytes) -> types_pb2.Event:  # noqa: ANN401  # of either form
    return types_pb2.Event(
        event_id=event.event_id,
        occurred_at=instant_to_wire(event.occurred_at),
        payload=payload,
        format_version=event.format_version,
        metadata=object_to_wire(event.metadata) if event.metadata else None,
        task_id=event.task_id,
    )


def _encoded(value: Payload, codec: Codec) -> bytes:
    # A client with the bytes codec has not decoded it.
    return value if isinstance(value, bytes) else codec.encode(value)


def _bytes(raw: msgspec.Raw, other: bytes) -> bytes:
    """Return a payload of a document, which is empty for null."""
    return other or (b"" if bytes(raw) == b"null" else bytes(raw))
