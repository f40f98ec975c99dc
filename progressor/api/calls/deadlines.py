"""The caller's deadline, as seconds that we may wait."""

from progressor import errors
from progressor.api.calls.ports import CallContext

_USELESS_SECONDS = 0.001
_MARGIN_SECONDS = 0.01
_MARGIN_SECONDS_MAX = 0.11
_ROUNDING = 0.01
_MARGIN_SHARE_MAX = 0.1


def seconds_left(context: CallContext) -> float | None:
    """Return how long to wait for the result of a call; None: without limit.

    This is a little less than the caller waits, since gRPC cancels the call at its deadline, and
    the error that names the continuing task has to arrive before. The margin is 10 ms for the way
    back, and 1 % because gRPC rounds a timeout up to three significant digits when it sends it.

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
