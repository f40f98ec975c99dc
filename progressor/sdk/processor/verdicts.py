"""What a handler raises to end its step in another way than by an answer."""

import datetime as dt
from collections.abc import Mapping
from typing import Any

import grpc

from progressor.sdk.codec.wire import Seconds, duration_to_wire, timedelta_of
from progressor.v1 import processor_service_pb2 as pb


class Verdict(Exception):  # noqa: N818  # a decision of the user's, no error
    """Ends a step; nothing else that the handler decided is saved."""

    def to_wire(self) -> pb.ProcessResponse:
        """Return the answer that says so."""
        raise NotImplementedError


class Reject(Verdict):
    """Refuse the request: the caller gets exactly this, the process stays as it was.

    An init that is rejected leaves no process behind. A timeout has no caller: raise Fail.
    """

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode = grpc.StatusCode.FAILED_PRECONDITION,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Take the message, status, reason and pairs that the caller gets.

        Raises:
            TypeError: One of them has another type; it is named.
        """
        _check_words(self, message, reason)
        if not isinstance(code, grpc.StatusCode):
            raise TypeError(_wrong(self, "code", "a grpc.StatusCode", code))
        if not all(isinstance(it, str) for pair in (metadata or {}).items() for it in pair):
            raise TypeError(_wrong(self, "metadata", "of str", metadata))
        assert code is not grpc.StatusCode.OK, "a refusal cannot be OK"
        super().__init__(message)
        self.message, self.code, self.reason, self.metadata = message, code, reason, metadata

    def to_wire(self) -> pb.ProcessResponse:
        """Return the answer that refuses."""
        return pb.ProcessResponse(
            reject=pb.Reject(
                code=status_number(self.code),
                message=_unicode(self.message),
                reason=_unicode(self.reason),
                metadata={_unicode(k): _unicode(v) for k, v in (self.metadata or {}).items()},
            )
        )


class Fail(Verdict):
    """Fail the step for good: the process breaks, and takes nothing but a repair."""

    def __init__(self, message: str, *, reason: str = "") -> None:
        """Take what becomes the process's detail, and a word to tell cases apart.

        Raises:
            TypeError: One of them is not a string.
        """
        _check_words(self, message, reason)
        super().__init__(message)
        self.message, self.reason = message, reason

    def to_wire(self) -> pb.ProcessResponse:
        """Return the answer that fails."""
        return failure(grpc.StatusCode.FAILED_PRECONDITION, self.message, self.reason)


class Retry(Verdict):
    """Ask for this step again, as long as the namespace's retry policy has attempts."""

    def __init__(self, message: str, *, after: Seconds | None = None, reason: str = "") -> None:
        """Take why, and how long to wait at least (seconds or timedelta; None: the policy's).

        A wait that is over, below zero, is none.

        Raises:
            TypeError: `message` or `reason` is not a string, or `after` is not a duration.
        """
        _check_words(self, message, reason)
        try:
            wait = None if after is None else max(timedelta_of(after), dt.timedelta(0))
        except (TypeError, ValueError, OverflowError) as error:
            raise TypeError(_wrong(self, "after", "seconds or a timedelta", after)) from error
        super().__init__(message)
        self.message, self.after, self.reason = message, after, reason
        self._wait = wait

    def to_wire(self) -> pb.ProcessResponse:
        """Return the answer that asks for another attempt."""
        response = failure(grpc.StatusCode.UNAVAILABLE, self.message, self.reason)
        if self._wait is not None:
            response.failure.retry_after.CopyFrom(duration_to_wire(self._wait))
        return response


def failure(code: grpc.StatusCode, message: str, reason: str) -> pb.ProcessResponse:
    """Return the answer of a failed step."""
    return pb.ProcessResponse(
        failure=pb.Failure(
            code=status_number(code), message=_unicode(message), reason=_unicode(reason)
        )
    )


def status_number(code: grpc.StatusCode) -> int:
    """Return the number of a gRPC status, as google.rpc.Code has it."""
    value: tuple[Any, ...] = code.value
    return int(value[0])


def _check_words(verdict: Verdict, message: object, reason: object) -> None:
    for name, value in (("message", message), ("reason", reason)):
        if not isinstance(value, str):
            raise TypeError(_wrong(verdict, name, "a str", value))


def _wrong(verdict: Verdict, name: str, form: str, value: object) -> str:
    return f"{type(verdict).__name__}: {name} must be {form}, got {value!r}"


def _unicode(text: str) -> str:
    """Return a text as it can be sent: surrogates, which have no UTF-8, are escaped."""
    return text.encode("utf-8", "backslashreplace").decode()
