"""Job membership: what is stored of a process's membership in a job reads back the same."""

import datetime as dt
import json

from hypothesis import given
from hypothesis import strategies as st

from progressor.domain.processes.policy import RetryPolicy, ZombiePolicy
from progressor.domain.processes.process import JobOptions, Leadership, Part, ProcessKey
from progressor.storage.rows.job_membership import options_of, options_text, part_of
from tests.property.test_wire import TEXTS

DURATIONS = st.timedeltas(dt.timedelta(0), dt.timedelta(days=3650))
POLICIES = st.builds(
    RetryPolicy,
    initial_interval=DURATIONS,
    coefficient=st.floats(1, 100),
    interval_max=DURATIONS,
    jitter=st.floats(0, 1),
    attempts_max=st.integers(1, 2**31 - 1),
    elapsed_max=st.none() | DURATIONS,
    non_retryable_reasons=st.lists(TEXTS, max_size=3).map(tuple),
)
OPTIONS = st.builds(
    JobOptions,
    takes_results=st.booleans(),
    retry_policy=st.none() | POLICIES,
    zombie_policy=st.none() | st.sampled_from(ZombiePolicy),
    target=st.none() | TEXTS,
    scheduled=st.booleans(),
)


@given(OPTIONS)
def test_options_are_read_as_they_were_kept(options: JobOptions) -> None:
    kept = options_text(options)

    assert (kept is None) == (options == JobOptions())
    assert options_of(None if kept is None else json.loads(kept)) == options


@given(
    st.none() | st.sampled_from(Leadership),
    st.none() | st.tuples(st.builds(ProcessKey, st.integers(0, 1023), TEXTS, TEXTS), st.integers()),
    OPTIONS,
)
def test_a_part_is_read_as_the_column_tells_it(
    led_by: Leadership | None, follows: tuple[ProcessKey, int] | None, options: JobOptions
) -> None:
    kept = options_text(options)
    leader, node = (None, None) if follows is None else follows
    place = [None] * 3 if leader is None else [leader.slot, leader.namespace, leader.process_id]
    told = [led_by and led_by.value, *place, node, None if kept is None else json.loads(kept)]

    found = part_of(told)

    assert found == Part(led_by=led_by, leader=leader, node=node, options=options)


def test_no_part_is_none() -> None:
    assert part_of(None) is None
