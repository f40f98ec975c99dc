"""Leases: what a replica holds, and how it lets go."""

import asyncio

import pytest

from progressor.runtime.core.leases import Ending, LeaseHandle, Leases
from tests.support.builders import make_task
from tests.support.runtime.virtual_time import in_virtual_time, settled


async def ask(handle: LeaseHandle) -> None:
    """Ask a processor that never answers."""
    handle.asking = asyncio.current_task()
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("ending", Ending)
@in_virtual_time
async def test_releasing_leases_cancels_the_request_in_flight(ending: Ending) -> None:
    leases = Leases()
    handle = leases.take(make_task())

    asking = asyncio.ensure_future(ask(handle))
    await settled()
    leases.let_go(ending)

    with pytest.raises(asyncio.CancelledError):
        await asking
    assert handle.ending is ending


@in_virtual_time
async def test_a_lease_taken_after_the_release_is_held() -> None:
    leases = Leases()
    leases.let_go(Ending.ABANDONED)

    assert leases.take(make_task()).ending is None


def test_what_is_leased_while_leases_are_lost_is_abandoned_before_it_begins() -> None:
    leases = Leases()
    leases.lost = True
    late = leases.take(make_task())
    leases.lost = False

    assert late.ending is Ending.ABANDONED
    assert leases.take(make_task(task_id=8, token=80)).ending is None
