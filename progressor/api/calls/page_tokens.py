"""Page tokens: the key of the last item seen, opaque to callers.

A token begins with a letter of its own for each list, so that one list's token is refused by
another.
"""

import base64
import binascii
import datetime as dt

from progressor.api.calls.validation import Violations, check_id, check_namespace_name
from progressor.domain.jobs.job import Job
from progressor.domain.processes.process import Process
from progressor.domain.views.process import Place, place_of
from progressor.wire.fields import ID_BYTES_MAX

_FIELD = "page_token"
_TOKEN_CHARACTERS_MAX = 2 * ID_BYTES_MAX
_TASK, _PROCESS, _NAMESPACE, _REPLICA, _GATE, _JOB = "t", "p", "n", "r", "g", "j"
_SCHEDULE = "s"
_ID_MAX = 2**63 - 1
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_GARBLED = "is not a token of this list"


def token_of_task(task_id: int) -> str:
    """Return the token of the page behind a task."""
    return _encode(_TASK, str(task_id))


def task_of_token(token: str, violations: Violations) -> int:
    """Return the task that a page begins behind; 0 for the first page."""
    return _id_of(_TASK, token, violations)


def token_of_process(process: Process) -> str:
    """Return the token of the page behind a process."""
    created_at, namespace, process_id = place_of(process)
    return _encode(_PROCESS, f"{_microseconds(created_at)}/{namespace}/{process_id}")


def process_of_token(token: str, violations: Violations, *, namespace: str) -> Place | None:
    """Return the place of the last process seen; None for the first page.

    Args:
        token: From the page before.
        violations: Takes what is wrong with it.
        namespace: Whose list it is; "": the list of all of them.
    """
    if not token:
        return None
    time, _, rest = (_decode(_PROCESS, token) or "").partition("/")
    created_at, (name, slash, process_id) = _instant(time), rest.partition("/")
    inner = Violations()
    check_namespace_name(name, _FIELD, inner)
    check_id(process_id, _FIELD, inner)
    if not slash or created_at is None or inner or namespace not in {"", name}:
        violations.add(_FIELD, _GARBLED)
        return None
    return created_at, name, process_id


def token_of_job(job: Job) -> str:
    """Return the token of the page behind a job."""
    return _encode(_JOB, f"{_microseconds(job.created_at)}/{job.key.process_id}")


def job_of_token(token: str, violations: Violations) -> tuple[dt.datetime, str] | None:
    """Return when the last job seen was created, and its id; None for the first page."""
    if not token:
        return None
    time, slash, process_id = (_decode(_JOB, token) or "").partition("/")
    created_at = _instant(time)
    inner = Violations()
    check_id(process_id, _FIELD, inner)
    if not slash or created_at is None or inner:
        violations.add(_FIELD, _GARBLED)
        return None
    return created_at, process_id


def token_of_namespace(name: str) -> str:
    """Return the token of the page behind a namespace."""
    return _encode(_NAMESPACE, name)


def namespace_of_token(token: str, violations: Violations) -> str:
    """Return the name that a page begins behind; empty for the first page."""
    if not token:
        return ""
    name = _decode(_NAMESPACE, token)
    inner = Violations()
    check_namespace_name(name or "", _FIELD, inner)
    if name is None or inner:
        violations.add(_FIELD, _GARBLED)
        return ""
    return name


def token_of_replica(replica_id: int) -> str:
    """Return the token of the page behind a replica."""
    return _encode(_REPLICA, str(replica_id))


def replica_of_token(token: str, violations: Violations) -> int:
    """Return the replica that a page begins behind; 0 for the first page."""
    return _id_of(_REPLICA, token, violations)


def token_of_gate(gate: str) -> str:
    """Return the token of the page behind a gate."""
    return _encode(_GATE, gate)


def gate_of_token(token: str, violations: Violations) -> str:
    """Return the gate that a page begins behind; empty for the first page."""
    if not token:
        return ""
    gate = _decode(_GATE, token)
    inner = Violations()
    check_id(gate or "", _FIELD, inner)
    if gate is None or inner:
        violations.add(_FIELD, _GARBLED)
        return ""
    return gate


def token_of_schedule(schedule_id: str) -> str:
    """Return the token of the page behind a schedule."""
    return _encode(_SCHEDULE, schedule_id)


def schedule_of_token(token: str, violations: Violations) -> str:
    """Return the schedule that a page begins behind; empty for the first page."""
    if not token:
        return ""
    schedule_id = _decode(_SCHEDULE, token)
    inner = Violations()
    check_id(schedule_id or "", _FIELD, inner)
    if schedule_id is None or inner:
        violations.add(_FIELD, _GARBLED)
        return ""
    return schedule_id


def _microseconds(instant: dt.datetime) -> int:
    return (instant - _EPOCH) // _MICROSECOND


def _id_of(kind: str, token: str, violations: Violations) -> int:
    if not token:
        return 0
    text = _decode(kind, token)
    if text is None or not _is_number(text) or int(text) > _ID_MAX:
        violations.add(_FIELD, _GARBLED)
        return 0
    return int(text)


def _encode(kind: str, text: str) -> str:
    return base64.urlsafe_b64encode(f"{kind}{text}".encode()).decode().rstrip("=")


def _decode(kind: str, token: str) -> str | None:
    if len(token) > _TOKEN_CHARACTERS_MAX or not token.isascii():
        return None
    padded = token + "=" * (-len(token) % 4)
    try:
        text = base64.b64decode(padded, altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None
    return text[1:] if text.startswith(kind) else None


def _is_number(text: str) -> bool:
    # 20 digits hold any of ours; int() refuses, or takes its time for, thousands of them.
    return text.isascii() and text.isdecimal() and len(text) < 20  # noqa: PLR2004 - as above


def _instant(text: str) -> dt.datetime | None:
    if not _is_number(text.removeprefix("-")):
        return None
    try:
        return _EPOCH + int(text) * _MICROSECOND
    except OverflowError:
        return None
