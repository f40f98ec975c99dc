"""Ends of processes, and leases that are revoked: how this replica learns of them."""

import asyncio
import dataclasses

import pytest

from progressor import errors
from progressor.domain.processes.reply import End, ProcessEnd, result_of
from progressor.runtime.core import leases
from progressor.runtime.effects import ends
from progressor.storage.postgres.rows.effects import AwaitedEnd, RevokedLease
from progressor.storage.processes.results import Word
from tests.support.builders import make_task, seconds
from tests.support.clock import START
from tests.support.runtime.harness import KEY, Harness, running
from tests.support.runtime.virtual_time import settled

BEGUN = ProcessEnd(init_task_id=7, created_at=START)
FINISHED = dataclasses.replace(BEGUN, verdict=End.FINISHED, result=b"r")
FAILED = dataclasses.replace(BEGUN, verdict=End.FAILED, detail="why")
REMOVED = dataclasses.replace(BEGUN, verdict=End.REMOVED)
LATER = dataclasses.replace(FINISHED, created_at=START + seconds(1))


def expect(harness: Harness, *, until_finished: bool = False) -> asyncio.Future[ProcessEnd]:
    waiter: asyncio.Future[ProcessEnd] = asyncio.get_running_loop().create_future()
    harness.replies.ends.expect(KEY, BEGUN, waiter, until_finished=until_finished)
    return waiter


@pytest.mark.parametrize("is_early", [False, True], ids=["expected before", "expected after"])
@pytest.mark.parametrize(
    ("read", "end"), [(FINISHED, FINISHED), (FAILED, FAILED), (None, REMOVED), (LATER, REMOVED)]
)
async def test_a_notification_has_the_end_read(
    harness: Harness, read: ProcessEnd | None, end: ProcessEnd, is_early: bool
) -> None:
    harness.results.ends[KEY] = read
    waiter = None if is_early else expect(harness)
    async with running(harness.replies.run):
        await settled()
        harness.listener.notify(7)
        await settled()

        assert await (waiter or expect(harness)) == end

    assert asyncio.get_running_loop().time() == 0


async def test_one_who_waits_until_it_is_finished_waits_through_an_error(harness: Harness) -> None:
    patient, impatient = expect(harness, until_finished=True), expect(harness)
    harness.results.ends[KEY] = BEGUN
    async with running(harness.replies.run):
        for end in (FAILED, FINISHED):
            harness.results.ends[KEY] = end
            harness.replies.announce_end(AwaitedEnd(7, (1, 2)))
            await settled()

    assert (impatient.result(), patient.result()) == (FAILED, FINISHED)
    assert harness.results.notified == [{2: [7]}, {2: [7]}]


async def test_the_safety_net_finds_an_end_without_a_notification_in_spite_of_an_outage(
    harness: Harness,
) -> None:
    waiter = expect(harness)
    harness.results.ends[KEY] = BEGUN
    async with running(harness.replies.run):
        await asyncio.sleep(ends.SAFETY_SECONDS + 1)
        assert not waiter.done()
        harness.results.ends[KEY] = FINISHED
        harness.results.outage.remaining = 1

        assert await waiter == FINISHED

    assert asyncio.get_running_loop().time() == 3 * ends.SAFETY_SECONDS


async def test_a_wait_is_forgotten_with_its_last_waiter(harness: Harness) -> None:
    first, second = expect(harness), expect(harness)
    counts = [harness.replies.waiting_count]
    for waiter in (first, second, second):
        harness.replies.ends.forget(BEGUN, waiter)
        counts.append(harness.replies.waiting_count)

    assert counts == [2, 1, 0, 0]


async def test_only_so_many_early_ends_are_remembered(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ends, "EARLY_MAX", 1)
    harness.results.ends[KEY] = FINISHED
    async with running(harness.replies.run):
        await settled()
        harness.replies.ends.look([7, 8])
        waiter = expect(harness)
        await settled()

    assert not waiter.done()


@pytest.mark.parametrize(
    ("end", "error"),
    [
        (FAILED, errors.ProcessFailedError),
        (REMOVED, errors.ProcessRemovedError),
        (dataclasses.replace(FAILED, verdict=End.TERMINATED), errors.ProcessTerminatedError),
    ],
)
def test_an_end_without_a_result_is_an_error(end: ProcessEnd, error: type[Exception]) -> None:
    with pytest.raises(error):
        result_of(KEY, end)


async def test_a_revoked_step_stops_asking_and_settles_nothing(harness: Harness) -> None:
    harness.processor.script.append(None)
    asked = asyncio.ensure_future(harness.run_step(make_task(token=70)))
    await harness.processor.hanging.wait()
    async with running(harness.replies.run):
        await settled()
        harness.replies.revoke(RevokedLease(2, 71))
        harness.listener.hear(Word(revoked=(69, 70)))
        await asked

    assert (harness.settlements.entries, harness.results.revoked) == ([], [{2: [71]}])
    assert harness.points["revoked"] == 1
    assert "abandoned" not in harness.points


@pytest.mark.parametrize("is_next", [False, True], ids=["claimed", "next of a settlement"])
async def test_a_lease_that_was_revoked_before_it_is_known_here_begins_no_step(
    harness: Harness, is_next: bool
) -> None:
    harness.replies.revoke(RevokedLease(harness.context.replica_id, 80))
    late = make_task(task_id=8, token=80)
    handle = harness.leases.take(make_task() if is_next else late)
    if is_next:
        harness.leases.pass_on(handle, late)

    assert handle.ending is leases.Ending.REVOKED


def test_only_so_many_revoked_leases_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "REVOKED_MAX", 1)
    own = leases.Leases()
    own.revoke(70)
    own.revoke(71)

    endings = [own.take(make_task(task_id=token, token=token)).ending for token in (70, 71)]

    assert endings == [None, leases.Ending.REVOKED]
