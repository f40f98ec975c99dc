"""What a handler raises to end its step in another way than by an answer."""

from collections.abc import Mapping
from typing import Any

import grpc

from progressor.sdk.wire import Seconds, duration_to_wire
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
        """Take the message, status, reason and pairs that the caller gets."""
        assert code is not grpc.StatusCode.OK, "a refusal cannot be OK"
        super().__init__(message)
        self.message, self.code, self.reason, self.metadata = message, code, reason, metadata

    def to_wire(self) -> pb.ProcessResponse:
        """Return the answer that refuses."""
        return pb.ProcessResponse(
            reject=pb.Reject(
                code=status_number(self.code),
                message=self.message,
                reason=self.reason,
                metadata=self.metadata,
            )
        )


class Fail(Verdict):
    """Fail the step for good: the process breaks, and takes nothing but a repair."""

    def __init__(self, message: str, *, reason: str = "") -> None:
        """Take what becomes the process's detail, and a word to tell cases apart."""
        super().__init__(message)
        self.message, self.reason = message, reason

    def to_wire(self) -> pb.ProcessResponse:
        """Return the answer that fails."""
        return failure(grpc.StatusCode.FAILED_PRECONDITION, self.message, self.reason)


class Retry(Verdict):
    """Ask for this step again, as long as the namespace's retry policy has attempts."""

    def __init__(self, message: str, *, after: Seconds | None = None, reason: str = "") -> None:
        """Take why, and how long to wait at least (seconds or timedelta; None: the policy's)."""
        super().__init__(message)
        self.message, self.after, self.reason = message, after, reason

    def to_wire(self) -> pb.ProcessResponse:
        """Return the answer that asks for another attempt."""
        response = failure(grpc.StatusCode.UNAVAILABLE, self.message, self.reason)
        if self.after is not None:
            response.failure.retry_after.CopyFrom(duration_to_wire(self.after))
        return response


def failure(code: grpc.StatusCode, message: str, reason: str) -> pb.ProcessResponse:
    """Return the answer of a failed step."""
    return pb.ProcessResponse(
        failure=pb.Failure(code=status_number(code), message=message, reason=reason)
    )


def status_number(code: grpc.StatusCode) -> int:
    """Return the number of a gRPC status, as google.rpc.Code has it."""
    value: tuple[Any, ...] = code.value
    return int(value[0])
