"""Counters: what was done in each namespace, and that steps count themselves there."""

from progressor.domain.processes.intent import Rejected
from progressor.domain.views.replica import StepTally
from progressor.runtime.core.counters import Counters
from progressor.runtime.core.measures import StepMeasures
from progressor.telemetry.metrics.registry import Metrics
from tests.support.builders import (
    make_entry,
    make_failure,
    make_success,
    make_task,
    seconds,
)


def test_each_namespace_has_a_tally_of_its_own() -> None:
    counters = Counters()
    counters.settled("orders")
    counters.answered("payments", 0.5, failed=True)

    assert counters.of("orders") == StepTally(settled_count=1)
    assert counters.of("payments") == StepTally(
        attempt_count=1, failed_count=1, processor_time=seconds(0.5)
    )


def test_a_namespace_that_was_deleted_begins_anew() -> None:
    counters = Counters()
    counters.settled("orders")
    counters.forget("orders")
    counters.forget("payments")

    assert counters.of("orders") == StepTally()


def test_a_step_is_counted_with_its_answer_and_with_its_settlement() -> None:
    counters = Counters()
    measures = StepMeasures(Metrics(), counters)
    task = make_task()

    for outcome in (
        make_success(),
        make_failure(),
        Rejected(code=9, reason="WRONG_AMOUNT", message="no"),
    ):
        measures.answered(task, outcome, 0.25)
    measures.settled(make_entry(), 1.0)

    assert counters.of(task.key.namespace) == StepTally(
        settled_count=1, attempt_count=3, failed_count=1, processor_time=seconds(0.75)
    )
