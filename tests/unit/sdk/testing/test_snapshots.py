"""A process from production goes on in memory, in the code that is to be deployed."""

import dataclasses
import datetime as dt
import json
from collections.abc import Callable
from typing import Any

import pytest

from progressor import errors
from progressor.cli.output import render
from progressor.sdk import (
    BYTES,
    Event,
    Process,
    Processor,
    ProcessStatus,
    Snapshot,
    Step,
    TaskStatus,
    TaskType,
    Timer,
)
from progressor.sdk.testing import DueTimer, Rehearsal, upgraded_states

NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
SECOND = dt.timedelta(seconds=1)


@dataclasses.dataclass
class Counts:
    counts: dict[str, int]


def orders() -> Processor[Counts]:
    processor = Processor("orders", state=Counts, version=2)

    @processor.upgrade(1)
    def _(old: list[str]) -> Counts:
        return Counts({item: old.count(item) for item in old})

    @processor.call
    def _(step: Step[Counts]) -> list[Any]:
        step.state = Counts({**step.state.counts, step.args: 1})
        step.emit("added")
        return [it.payload for it in step.history]

    @processor.timeout
    def _(step: Step[Counts]) -> None:
        step.complete(step.args)

    @processor.repair
    def _(step: Step[Counts]) -> None:
        step.emit("repaired")

    return processor


def snapshot(**fields: Any) -> Snapshot[Any]:
    process: dict[str, Any] = {
        "namespace": "orders", "process_id": "p", "status": ProcessStatus.RUNNING, "detail": "",
        "state": ["tea"], "state_version": 1, "metadata": {"city": "Oslo"}, "corrupted_by": None,
        "previous_status": ProcessStatus.INIT, "created_at": NOON, "status_changed_at": NOON,
        "last_event_id": 7, "result": None,
    }  # fmt: skip
    return Snapshot(
        process=Process(**process | fields),
        history=(
            Event(
                event_id=7, occurred_at=NOON + SECOND, payload={"placed": "tea"}, format_version=1,
                metadata={}, task_id=40,
            ),
        ),
        timer=Timer(
            task_id=41, type=TaskType.TIMEOUT, status=TaskStatus.WAITING, due_at=NOON + 9 * SECOND
        ),
        waits=(), next_after=None, explanation="", job_role=None,
    )  # fmt: skip


FORMS: list[Callable[[Snapshot[Any]], Any]] = [
    lambda it: it,
    lambda it: render(as_printed(it)),
    lambda it: render(as_printed(it), indent=-1).encode(),
    lambda it: json.loads(render(as_printed(it))),
]


def as_printed(it: Snapshot[Any]) -> Snapshot[Any]:
    """Return a snapshot as the client of the command line has it: with encoded payloads."""
    encoded = dataclasses.replace(it.process, state=json.dumps(it.process.state).encode())
    events = [dataclasses.replace(e, payload=json.dumps(e.payload).encode()) for e in it.history]
    return dataclasses.replace(it, process=encoded, history=tuple(events))


@pytest.mark.parametrize("form", FORMS)
async def test_a_stored_process_goes_on_with_its_upgraded_state(
    form: Callable[[Snapshot[Any]], Any],
) -> None:
    process = Rehearsal.from_snapshot(orders(), form(snapshot()))
    assert (process.process_id, process.status, process.now) == (
        "p", ProcessStatus.RUNNING, NOON + SECOND,
    )  # fmt: skip
    assert (process.state, process.metadata) == (Counts({"tea": 1}), {"city": "Oslo"})
    assert process.timer == DueTimer(due_at=NOON + 9 * SECOND, args=None, remove=False)

    answer = await process.call("milk")

    assert (answer.task_id, answer.response) == (42, [{"placed": "tea"}])
    assert process.state == Counts({"tea": 1, "milk": 1})
    assert [it.event_id for it in process.history] == [7, 8]
    assert await process.advance(8) == 1
    assert process.status is ProcessStatus.FINISHED


@pytest.mark.parametrize("form", FORMS)
async def test_a_stored_process_has_all_its_timers(form: Callable[[Snapshot[Any]], Any]) -> None:
    stored = snapshot()
    assert stored.timer is not None
    later = dataclasses.replace(
        stored.timer, name="b", task_id=99, due_at=NOON + 10 * SECOND, type=TaskType.REMOVE
    )

    process = Rehearsal.from_snapshot(
        orders(), form(dataclasses.replace(stored, later_timers=(later,)))
    )

    due_at = NOON + 10 * SECOND
    assert list(process.timers) == ["", "b"]
    assert process.timers["b"] == DueTimer(due_at=due_at, args=None, remove=True, name="b")
    assert (await process.call("milk")).task_id == 100


@pytest.mark.parametrize("form", FORMS)
async def test_a_stored_process_in_error_can_be_repaired(
    form: Callable[[Snapshot[Any]], Any],
) -> None:
    broken = snapshot(status=ProcessStatus.ERROR, detail="KeyError: 'price'", corrupted_by=60)
    process = Rehearsal.from_snapshot(orders(), form(broken), starts_at=NOON)

    assert (process.detail, process.now) == ("KeyError: 'price'", NOON)
    with pytest.raises(errors.ProcessFailedError, match="KeyError: 'price'"):
        await process.call("milk")
    with pytest.raises(ValueError, match="a snapshot does not have the task that broke"):
        await process.retry()
    repaired = await process.repair()

    assert (repaired.task_id, process.status) == (61, ProcessStatus.RUNNING)


async def test_a_finished_process_has_its_result() -> None:
    finished = snapshot(status=ProcessStatus.FINISHED, result={"shipped": True})
    process = Rehearsal.from_snapshot(orders(), dataclasses.replace(finished, timer=None))

    assert (process.result, process.timer) == ({"shipped": True}, None)


def test_payloads_that_are_not_json_are_read_from_base64() -> None:
    printed = dataclasses.replace(snapshot(state=b"\xff\x00"), history=())

    process = Rehearsal.from_snapshot(Processor("orders", codec=BYTES), render(printed))

    assert process.state == b"\xff\x00"


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("{}", "missing required field `process`"),
        ({"process": {"process_id": "p"}}, r"missing required field `status` - at `\$.process`"),
        ("no json", "JSON is malformed"),
    ],
)
def test_another_document_is_refused(document: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Rehearsal.from_snapshot(orders(), document)


def test_all_states_are_upgraded_and_those_that_fail_are_named() -> None:
    good = snapshot(), snapshot(process_id="q", state={"counts": {}}, state_version=2)
    bad = snapshot(process_id="r", state=5), snapshot(process_id="s", state_version=3)

    assert upgraded_states(orders(), good) == {"p": Counts({"tea": 1}), "q": Counts({})}
    with pytest.raises(ExceptionGroup, match="2 of 4 states cannot be read by 'orders'") as raised:
        upgraded_states(orders(), [*good, *bad])

    assert [it.__notes__ for it in raised.value.exceptions] == [["process 'r'"], ["process 's'"]]
