"""A rehearsal decides as the engine does."""

import datetime as dt
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from progressor.domain.processes import policy as domain
from progressor.domain.processes.retry import next_delay
from progressor.sdk import NamespaceConfig, RetryPolicy, TaskError, TaskType
from progressor.sdk.testing.attempts import Failed, Task, delay_after
from progressor.sdk.testing.rehearsal import STARTS_AT

durations = st.integers(0, 10**7).map(lambda it: dt.timedelta(milliseconds=it))


@given(
    initial=durations,
    longest=durations,
    coefficient=st.floats(1, 1e6),
    attempts_max=st.integers(1, 9),
    attempt=st.integers(1, 5000),
    elapsed=durations,
    elapsed_max=st.none() | durations,
    retry_after=durations,
    reason=st.sampled_from(["A", "B"]),
)
def test_the_next_attempt_comes_when_the_engine_has_it(
    *,
    initial: dt.timedelta,
    longest: dt.timedelta,
    coefficient: float,
    attempts_max: int,
    attempt: int,
    elapsed: dt.timedelta,
    elapsed_max: dt.timedelta | None,
    retry_after: dt.timedelta,
    reason: str,
) -> None:
    fields: dict[str, Any] = {
        "initial_interval": initial,
        "interval_max": longest,
        "coefficient": coefficient,
        "attempts_max": attempts_max,
        "elapsed_max": elapsed_max,
        "non_retryable_reasons": ("B",),
        "jitter": 0.0,
    }
    task = Task(
        task_id=1,
        type=TaskType.CALL,
        args=b"",
        scheduled_at=STARTS_AT,
        first_at=STARTS_AT,
        attempt=attempt,
    )
    failed = Failed(
        error=TaskError(code=14, reason=reason, message=""), retryable=True, retry_after=retry_after
    )
    config = NamespaceConfig(name="n", processor_targets=(), retry_policy=RetryPolicy(**fields))

    assert delay_after(failed, task, config, STARTS_AT + elapsed) == next_delay(
        domain.RetryPolicy(**fields),
        attempt=attempt,
        reason=reason,
        elapsed=elapsed,
        spread=0,
        retry_after=retry_after,
    )
