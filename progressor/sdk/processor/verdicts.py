"""How a step ends without an answer: what a handler raises, and what is said of it."""

import datetime as dt
import traceback
from collections.abc import Mapping
from typing import Any

import grpc

from progressor.sdk.codec.wire import Seconds, duration_to_wire, timedelta_of
from progressor.sdk.values.processes import TaskType
from progressor.v1 import processor_service_pb2 as pb


class Verdict(Exception):  # noqa: N818  # a decision of the user's, not an error
    """Ends a step; nothing of what the handler did to it is saved."""

    def to_wire(self) -> pb.ProcessResponse:
        """Return it as the answer of the processor."""
        raise NotImplementedError


class Reject(Verdict):
    """Reject the request: the caller gets this status, and the process stays unchanged.

    A rejected init creates no process. A timeout has no caller: raise `Fail` in it.
    """

    def __init__(
        self,
        message: str,
        *,
        code: grpc.StatusCode = grpc.StatusCode.FAILED_PRECONDITION,
        reason: str = "",
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        """Set what the caller gets.

        Args:
            message: For people.
            code: The gRPC status; not OK.
            reason: A word for programs, `RejectedError.processor_reason`.
            metadata: Further pairs for programs.

        Raises:
            TypeError: An argument has a wrong type; the message names it.
        """
        _check_words(self, message, reason)
        if not isinstance(code, grpc.StatusCode):
            raise TypeError(_wrong(self, "code", "a grpc.StatusCode", code))
        if not all(isinstance(it, str) for pair in (metadata or {}).items() for it in pair):
            raise TypeError(_wrong(self, "metadata", "of str", metadata))
        assert code is not grpc.StatusCode.OK, "a rejection cannot have the status OK"
        super().__init__(message)
        self.message, self.code, self.reason, self.metadata = message, code, reason, metadata

    def to_wire(self) -> pb.ProcessResponse:
        """Return it as the answer of the processor."""
        return pb.ProcessResponse(
            reject=pb.Reject(
                code=status_number(self.code),
                message=_unicode(self.message),
                reason=_unicode(self.reason),
                metadata={_unicode(k): _unicode(v) for k, v in (self.metadata or {}).items()},
            )
        )


class Fail(Verdict):
    """Fail the step without a retry: the process breaks, and accepts only a repair."""

    def __init__(self, message: str, *, reason: str = "") -> None:
        """Set the error of the step.

        Args:
            message: For people; it becomes the detail of the process.
            reason: A word for programs, `ProcessFailedError.failure_reason`.

        Raises:
            TypeError: An argument is not a string.
        """
        _check_words(self, message, reason)
        super().__init__(message)
        self.message, self.reason = message, reason

    def to_wire(self) -> pb.ProcessResponse:
        """Return it as the answer of the processor."""
        return failure(grpc.StatusCode.FAILED_PRECONDITION, self.message, self.reason)


class Retry(Verdict):
    """Try this step again, if the retry policy of the namespace has attempts left."""

    def __init__(self, message: str, *, after: Seconds | None = None, reason: str = "") -> None:
        """Set the error of this attempt.

        Args:
            message: For people; the detail of the process if no attempts are left.
            after: The minimum wait before the next attempt, in seconds or a timedelta; None, or
                less than 0: the wait of the policy.
            reason: A word for programs, which the policy can exclude from retries.

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
        """Return it as the answer of the processor."""
        response = failure(grpc.StatusCode.ABORTED, self.message, self.reason)
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
    """Return the number of a gRPC status."""
    value: tuple[Any, ...] = code.value
    return int(value[0])


def text_of_step(request: pb.ProcessRequest) -> str:
    """Return the process, the task and the attempt of a request, for a log.

    It is in the text of a record since a program's log may show nothing else. Ids and errors are on
    one line, whatever they contain.
    """
    process, task = request.process, request.task
    return (
        f"namespace {process.namespace!r}, process {process.process_id!r}, "
        f"{TaskType.from_number(task.type)} task {task.task_id}, attempt {task.attempt}"
    )


def text_of_error(error: BaseException) -> str:
    """Return an error with its class, as in the last line of its traceback."""
    text = traceback.format_exception_only(error)[0].strip()
    return text if text.isprintable() else repr(text)[1:-1]


def text_of_failure(error: Exception) -> str:
    """Return the message of a failure by an error; the reason of the failure is its class.

    The text of a KeyError is only the key, and some errors have no text: these get their class.
    """
    if isinstance(error, KeyError) or not str(error):
        return traceback.format_exception_only(error)[0].strip()
    return str(error)


def _check_words(verdict: Verdict, message: object, reason: object) -> None:
    for name, value in (("message", message), ("reason", reason)):
        if not isinstance(value, str):
            raise TypeError(_wrong(verdict, name, "a str", value))


def _wrong(verdict: Verdict, name: str, form: str, value: object) -> str:
    return f"{type(verdict).__name__}: {name} must be {form}, got {value!r}"


def _unicode(text: str) -> str:
    """Return a text with surrogates escaped, which UTF-8 cannot encode."""
    return text.encode("utf-8", "backslashreplace").decode()
