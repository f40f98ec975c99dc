"""The caller's deadline, as seconds that we may wait."""

from progressor import errors
from progressor.api.calls.ports import CallContext

_USELESS_SECONDS = 0.001
_MARGIN_SECONDS = 0.01
_MARGIN_SECONDS_MAX = 0.11
_ROUNDING = 0.01
_MARGIN_SHARE_MAX = 0.1


def seconds_left(context: CallContext) -> float | None:
    """Return how long to wait for an answer; None: as long as it takes.

    A little less than the caller waits: gRPC cancels us at the deadline, and our own answer, which
    names the task that goes on, has to be there before. 10 ms for the way back, and 1 % because
    gRPC rounds a timeout up, to as much as three significant digits, when it sends it.

    Raises:
        DeadlineExceededError: It has passed, or is so near that nothing could be done by then.
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
