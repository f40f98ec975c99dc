"""What a gRPC status of a processor means for the step.

=============================  =======================  =========  ==============================
status                         reason                   retryable  because
=============================  =======================  =========  ==============================
UNAVAILABLE                    PROCESSOR_UNAVAILABLE *  unreach.   refused; yes if it was cut off
CANCELLED                      PROCESSOR_UNAVAILABLE    yes        the other side hung up
DEADLINE_EXCEEDED              STEP_TIMEOUT             yes        the step ran past its timeout
RESOURCE_EXHAUSTED, too large  MESSAGE_TOO_LARGE        no         it will be as large next time
RESOURCE_EXHAUSTED             the code's name *        unreach.   the processor has no room
ABORTED                        the code's name *        yes        the processor asks for a retry
UNKNOWN                        the code's name *        yes        an exception in a handler
UNIMPLEMENTED                  PROCESSOR_UNAVAILABLE    unreach.   not served at this target
UNAUTHENTICATED                PROCESSOR_UNAVAILABLE    unreach.   engine not accepted there
any other                      the code's name *        no         the processor means it
=============================  =======================  =========  ==============================

UNAVAILABLE with the reason STILL_RUNNING is of a processor that is in reach, and still runs an
earlier task of the same process: only the step itself waits, for as long as it takes.

(*) or ErrorInfo.reason, where the status has one. RetryInfo becomes ``retry_after``. "unreach.": as
a processor that was not reached: retried without counting the attempt.

UNIMPLEMENTED and UNAUTHENTICATED are faults of a configuration: a namespace names the wrong target,
or a target does not serve the namespace (yet). They count as a processor that was not reached. A
``failure`` in an answer with one of these codes is taken alike.

This holds for calls, which carry one step. The status of a stream concerns none of its steps in
particular: whatever it is, each of them was cut off.
"""

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence

import grpc
from google.protobuf import duration_pb2, message
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc import aio

from progressor.domain.processes.event import Event
from progressor.domain.processes.intent import STEP_TIMEOUT, STILL_RUNNING, Failed

HISTORY_TOO_LARGE = "HISTORY_TOO_LARGE"
INVALID_ANSWER = "INVALID_ANSWER"
MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"
PROCESSOR_UNAVAILABLE = "PROCESSOR_UNAVAILABLE"
TARGET_NOT_FOUND = "TARGET_NOT_FOUND"
TARGET_UNREACHABLE = "TARGET_UNREACHABLE"

MESSAGE_BYTES_MAX = 64 * 1024 * 1024
"""The size of one request or answer on the wire."""

REQUEST_BYTES_ASSUMED = 4 * 1024 * 1024
"""The limit of a processor that does not announce one: gRPC's default."""

TEXT_BYTES_MAX = 4096
REASON_BYTES_MAX = 256
RELEASE_BYTES_MAX = 64

RETRY_AFTER_MAX = dt.timedelta(days=30)
"""How long a processor may ask not to be asked again."""

UNREACHABLE_CODES = frozenset({code_pb2.UNAVAILABLE, code_pb2.RESOURCE_EXHAUSTED})
"""Codes with which a processor says that it did not begin a step."""

RETRYABLE_CODES = UNREACHABLE_CODES | {code_pb2.ABORTED, code_pb2.UNKNOWN}
"""Codes with which a processor says that another attempt may help."""

_MISCONFIGURED_TEXTS: Mapping[int, str] = {
    code_pb2.UNIMPLEMENTED: "the target does not serve this namespace",
    code_pb2.UNAUTHENTICATED: "the target does not accept this engine",
}

MISCONFIGURED_CODES = frozenset(_MISCONFIGURED_TEXTS)
"""Statuses of a target that does not serve this namespace, or not this engine."""

CUT_OFF = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})
"""How gRPC reports that there is no connection."""

STEP_RAN_OUT = Failed(
    code=code_pb2.DEADLINE_EXCEEDED,
    reason=STEP_TIMEOUT,
    message="Deadline Exceeded",
    retryable=True,
)
"""The failure of a step whose timeout the engine itself noticed, in gRPC's words."""

_CODE_NAMES: Mapping[int, str] = {code.value[0]: code.name for code in grpc.StatusCode}
_STATUS_DETAILS_KEY = "grpc-status-details-bin"

_RAN_OUT_TEXTS = frozenset({STEP_RAN_OUT.message, "context deadline exceeded"})
"""gRPC's messages for an exceeded deadline; the second is that of Go."""

# gRPC has no code of its own for this. C++, Python and Go use the first text, Java the second, on
# whichever side noticed.
_TOO_LARGE_TEXTS = ("larger than max", "exceeds maximum size")


def code_name(code: int) -> str:
    """Return the name of a gRPC status code, 0 .. 16."""
    return _CODE_NAMES[code]


def clean_text(text: str, bytes_max: int = TEXT_BYTES_MAX) -> str:
    """Return a text that PostgreSQL takes: without NUL, at most `bytes_max` bytes of UTF-8."""
    if len(text) * 4 > bytes_max or "\0" in text:
        # Cutting may split a character, of which the rest is dropped.
        clean = text.replace("\0", "").encode(errors="replace")
        return clean[:bytes_max].decode(errors="ignore")
    return text


def clean_reason(reason: str) -> str:
    """Return a reason as `clean_text` does, of at most 256 bytes."""
    return clean_text(reason, REASON_BYTES_MAX)


def _failed(code: int, reason: str, why: str, *, retryable: bool = False) -> Failed:
    return Failed(code=code, reason=reason, message=clean_text(why), retryable=retryable)


def invalid_answer(why: str) -> Failed:
    """Return the failure of a step whose answer is invalid."""
    return _failed(code_pb2.INTERNAL, INVALID_ANSWER, why)


def message_too_large(why: str) -> Failed:
    """Return the failure of a step whose request or answer gRPC would not carry."""
    return _failed(code_pb2.RESOURCE_EXHAUSTED, MESSAGE_TOO_LARGE, why)


def step_too_large(target: str, size: int, *, limit: int, history: Sequence[Event]) -> Failed:
    """Return the failure of a step that is not sent because it exceeds its processor's limit."""
    what = f"the step is {size:,} bytes"
    remedy = "raise its limit on received messages and announce it with ProcessorService.Describe"
    if history:
        history_bytes = sum(len(event.payload) for event in history)
        what += f", {history_bytes:,} of them in the {len(history):,} events of its history"
        remedy += (
            "; or send less history, with the namespace's history policy (last n, none) "
            "or the request's history_range"
        )
    reason = HISTORY_TOO_LARGE if history else MESSAGE_TOO_LARGE
    why = f"{what}; the processor at {target} accepts at most {limit:,}: {remedy}"
    return _failed(code_pb2.RESOURCE_EXHAUSTED, reason, why)


def processor_unavailable(why: str) -> Failed:
    """Return the failure of a step that did not reach its processor, or was cut off from it."""
    return _failed(code_pb2.UNAVAILABLE, PROCESSOR_UNAVAILABLE, why, retryable=True)


def not_connected(target: str, why: str) -> Failed:
    """Return the failure of a step that was not sent, since its target is not connected."""
    failed = processor_unavailable(f"{target}: {why}")
    return dataclasses.replace(failed, unreachable=True, sent=False)


def misconfigured(
    code: int, reason: str, why: str, retry_after: dt.timedelta | None = None
) -> Failed:
    """Return the failure of a step whose target responds but is the wrong one, as unreachable."""
    said = f"{code_name(code)} {reason}" if reason else code_name(code)
    words = f"{_MISCONFIGURED_TEXTS[code]}: {said}: {why}"
    return dataclasses.replace(
        processor_unavailable(words), unreachable=True, retry_after=retry_after
    )


def target_not_found(target: str) -> Failed:
    """Return the failure of a node whose target its namespace no longer names."""
    why = f"the namespace has no processor target {target}"
    return _failed(code_pb2.FAILED_PRECONDITION, TARGET_NOT_FOUND, why)


def out_of_patience(target: str | None, unreachable_for: dt.timedelta, why: str) -> Failed:
    """Return the failure of a step whose processor has been unreachable for too long.

    `target` is that of a node which is bound to one.
    """
    what = "the processor" if target is None else target
    reason = PROCESSOR_UNAVAILABLE if target is None else TARGET_UNREACHABLE
    seconds = unreachable_for.total_seconds()
    why = f"{what} has been unreachable for {seconds:.1f} s: {why}"
    return _failed(code_pb2.UNAVAILABLE, reason, why)


def out_of_time(failed: Failed, timeout: dt.timedelta, elapsed: dt.timedelta) -> Failed:
    """Return a failure with the step timeout in its words, if the step ran past it.

    Args:
        failed: Any failure.
        timeout: The step timeout.
        elapsed: Since the first attempt began.
    """
    exceeded = f"step timeout of {timeout.total_seconds():g} s exceeded"
    # Other words are the processor's own, of a deadline that it had set.
    if failed.reason == STEP_TIMEOUT and failed.message in _RAN_OUT_TEXTS:
        return dataclasses.replace(failed, message=exceeded)
    if failed.reason == STILL_RUNNING and elapsed >= timeout:
        message = clean_text(f"{exceeded} ({failed.message})")
        return dataclasses.replace(failed, message=message)
    return failed


def cut_off(error: aio.AioRpcError) -> Failed:
    """Return what the status of a stream, other than OK, means for a step on it."""
    failed = failure_of(error)
    if failed.code == code_pb2.UNAVAILABLE:
        return dataclasses.replace(failed, unreachable=False)
    words = f"the stream ended with {code_name(error.code().value[0])}: {failed.message}"
    return dataclasses.replace(processor_unavailable(words), retry_after=failed.retry_after)


def failure_of(error: aio.AioRpcError) -> Failed:
    """Return the failure of a step by its status, other than OK: the table above."""
    code: int = error.code().value[0]
    text = error.details() or code_name(code)
    if code == code_pb2.CANCELLED:
        return processor_unavailable(text)
    reason, retry_after = _details_of(error)
    if code == code_pb2.RESOURCE_EXHAUSTED and not reason and _is_too_large(text):
        return message_too_large(text)
    if code in MISCONFIGURED_CODES:
        return misconfigured(code, reason, text, retry_after)
    if code == code_pb2.DEADLINE_EXCEEDED:
        reason = STEP_TIMEOUT
    elif not reason:
        reason = PROCESSOR_UNAVAILABLE if code == code_pb2.UNAVAILABLE else code_name(code)
    retryable = code in RETRYABLE_CODES or code == code_pb2.DEADLINE_EXCEEDED
    failed = _failed(code, reason, text, retryable=retryable)
    return dataclasses.replace(
        failed, retry_after=retry_after, unreachable=code in UNREACHABLE_CODES
    )


def _is_too_large(text: str) -> bool:
    return any(sign in text for sign in _TOO_LARGE_TEXTS)


def _details_of(error: aio.AioRpcError) -> tuple[str, dt.timedelta | None]:
    """Return the reason and the retry delay of a rich status; both may be missing."""
    packed = error.trailing_metadata().get(_STATUS_DETAILS_KEY)
    if not isinstance(packed, bytes):
        return "", None
    error_info, retry_info = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    try:
        for detail in status_pb2.Status.FromString(packed).details:
            # Unpack leaves the message as it is where the type is another.
            detail.Unpack(error_info)
            detail.Unpack(retry_info)
    except message.DecodeError:
        # The status itself says enough; broken details must not end a step otherwise.
        return "", None
    has_delay = retry_info.HasField("retry_delay")
    return clean_reason(error_info.reason), _delay_of(retry_info.retry_delay) if has_delay else None


def _delay_of(duration: duration_pb2.Duration) -> dt.timedelta:
    """Return a delay that may come from any proxy on the way: bounded, never refused."""
    seconds_max = int(RETRY_AFTER_MAX.total_seconds())
    seconds = min(max(duration.seconds, 0), seconds_max)
    delay = dt.timedelta(seconds=seconds, microseconds=max(duration.nanos, 0) // 1000)
    return min(delay, RETRY_AFTER_MAX)
