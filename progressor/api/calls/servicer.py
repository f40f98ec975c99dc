"""What the servicers share: their methods, and how a request is read before it is served."""

import functools
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from progressor import errors
from progressor.api.calls.ports import Backend, CallContext
from progressor.api.calls.traces import trace_context_of
from progressor.domain.processes.process import ProcessKey
from progressor.telemetry.logs import fields as log_fields

_USELESS_SECONDS = 0.001
_MARGIN_SECONDS = 0.01
_MARGIN_SECONDS_MAX = 0.11
_ROUNDING = 0.01
_MARGIN_SHARE_MAX = 0.1


class Servicer:
    """The methods of one service: for each RPC the method of its name, in snake case.

    A method takes a message and a `CallContext`, and returns a message or raises the `errors` that
    become statuses. Cancelling it (the caller hung up) never cancels a task.
    """

    def __init__(self, backend: Callable[[], Backend]) -> None:
        self._backend = backend

    def method(self, rpc: str) -> Any:  # noqa: ANN401  # each has a message type of its own
        return getattr(self, re.sub(r"(?<=[a-z])(?=[A-Z])", "_", rpc).lower())


S = TypeVar("S", bound=Servicer)
Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


def reading(
    read: Callable[[Any], Asked],
) -> Callable[
    [Callable[[S, Asked, CallContext], Awaitable[Answer]]],
    Callable[[S, Any, CallContext], Awaitable[Answer]],
]:
    """Decode the message of a method, and check that its namespace exists.

    A passed deadline is reported first, then violations of the request, then an unknown namespace.
    """

    def declare(
        serve: Callable[[S, Asked, CallContext], Awaitable[Answer]],
    ) -> Callable[[S, Any, CallContext], Awaitable[Answer]]:
        @functools.wraps(serve)
        async def method(servicer: S, message: Any, context: CallContext) -> Answer:  # noqa: ANN401  # any message
            seconds_left(context)
            asked = read(message)
            if namespace := getattr(getattr(asked, "key", asked), "namespace", ""):
                await servicer._backend().namespaces.lookup(namespace)  # noqa: SLF001  # its own
            return await serve(servicer, asked, context)

        return method

    return declare


def seconds_left(context: CallContext) -> float | None:
    """Return how long to wait for the result of a call; None: without limit.

    This is a little less than the caller waits, since gRPC cancels the call at its deadline, and
    the error that names the continuing task has to arrive before: 10 ms for the way back, and 1 %
    because gRPC rounds a timeout up to three significant digits.

    Raises:
        DeadlineExceededError: The deadline has passed, or is less than 1 ms away.
    """
    remaining = context.time_remaining()
    if remaining is None:
        return None
    if remaining < _USELESS_SECONDS:
        raise errors.DeadlineExceededError(None)
    margin = min(
        _MARGIN_SECONDS + _ROUNDING * remaining, _MARGIN_SECONDS_MAX, _MARGIN_SHARE_MAX * remaining
    )
    return remaining - margin


def log_change(
    log: logging.Logger, change: str, key: ProcessKey, context: CallContext, **facts: object
) -> None:
    """Log a change that no step makes; settlement logs the others."""
    log.info(change, extra={**log_fields.of_process(key, trace_context_of(context)), **facts})
