"""The rates of one replica: what takes from which, and how due timers wait."""

import asyncio
import contextlib

import pytest

from progressor import errors
from progressor.domain.processes.task import TaskType
from progressor.domain.quotas.quotas import Quotas
from progressor.runtime.core.rates import LOOK_SECONDS, LOOK_SECONDS_MAX, Rates
from tests.support.builders import make_namespace, make_request
from tests.support.runtime.harness import make_context
from tests.support.runtime.virtual_time import in_virtual_time

CALL = make_request(task_type=TaskType.CALL, args=bytes(100))
SMALL = make_request(task_type=TaskType.CALL, args=b"")


@in_virtual_time
async def test_a_request_over_one_quota_takes_nothing_of_another() -> None:
    rates = Rates(make_context())
    namespace = make_namespace(quotas=Quotas(calls_per_second=1, bytes_per_second=10))
    rates.share((), lambda _: namespace)
    await asyncio.sleep(1)
    rates.take(namespace, CALL)
    await asyncio.sleep(1)

    with pytest.raises(errors.QuotaExceededError) as refused:
        rates.take(namespace, CALL)

    assert refused.value.quota == "bytes_per_second"
    assert rates.take(make_namespace(quotas=Quotas(calls_per_second=1)), SMALL)


@in_virtual_time
async def test_what_is_given_back_can_be_taken_again() -> None:
    rates = Rates(make_context())
    namespace = make_namespace(quotas=Quotas(calls_per_second=1))
    rates.take(namespace, CALL)
    rates.give_back(namespace, CALL)

    assert rates.take(namespace, CALL)
    with pytest.raises(errors.QuotaExceededError):
        rates.take(namespace, CALL)


@in_virtual_time
async def test_refused_requests_are_told_different_times() -> None:
    rates = Rates(make_context())
    namespace = make_namespace(quotas=Quotas(calls_per_second=10))
    told = []
    for _ in range(20):
        try:
            rates.take(namespace, CALL)
        except errors.QuotaExceededError as error:
            told.append(error.retry_after)

    assert len(set(told)) == len(told)
    assert told[0].total_seconds() < 0.2
    assert told[-1].total_seconds() > 1


@in_virtual_time
async def test_while_timers_wait_only_the_oldest_may_fire() -> None:
    looked: list[str] = []
    rates = Rates(make_context(), timers_have_room=looked.append)
    namespace = make_namespace(quotas=Quotas(timers_per_second=10))
    first = rates.take_timers(namespace, 5, oldest=False)
    over = rates.take_timers(namespace, 5, oldest=False)
    await asyncio.sleep(LOOK_SECONDS_MAX + LOOK_SECONDS)
    younger = rates.take_timers(namespace, 5, oldest=False)
    oldest = rates.take_timers(namespace, 5, oldest=True)
    rates.release_timers(namespace.name)

    assert (first, over, younger, oldest) == (1, 0, 0, 5)
    assert looked[0] == namespace.name
    assert rates.take_timers(namespace, 2, oldest=False) == 2


@in_virtual_time
async def test_small_requests_do_not_keep_a_large_one_out() -> None:
    rates = Rates(make_context())
    namespace = make_namespace(quotas=Quotas(bytes_per_second=1000))
    small = make_request(task_type=TaskType.CALL, args=bytes(20))
    large = make_request(task_type=TaskType.CALL, args=bytes(5000))
    rates.share((), lambda _: namespace)
    sizes: list[int] = []
    for number in range(2000):
        # More small ones than there is room for; the large one comes first, or after some of them.
        for request in (large, small, small, small) if number % 4 else (small, large, small, small):
            with contextlib.suppress(errors.QuotaExceededError):
                rates.take(namespace, request)
                sizes.append(request.size)
        await asyncio.sleep(0.01)

    assert sizes.count(5000) >= 2
    assert sum(sizes) <= 1000 * 21 + 5000


@in_virtual_time
async def test_what_a_large_request_owes_is_not_forgotten_in_silence() -> None:
    rates = Rates(make_context())
    namespace = make_namespace(quotas=Quotas(bytes_per_second=10))
    rates.share((), lambda _: namespace)
    await asyncio.sleep(1)
    rates.take(namespace, make_request(task_type=TaskType.CALL, args=bytes(1000)))
    for _ in range(60):
        await asyncio.sleep(1)
        rates.share((), lambda _: namespace)

    with pytest.raises(errors.QuotaExceededError):
        rates.take(namespace, CALL)
    for _ in range(60):
        await asyncio.sleep(1)
        rates.share((), lambda _: namespace)
    assert rates.take(namespace, CALL)


@in_virtual_time
async def test_once_a_share_has_grown_nobody_is_told_to_wait_as_before() -> None:
    rates = Rates(make_context())
    few, many = (make_namespace(quotas=Quotas(calls_per_second=it)) for it in (1, 1000))
    rates.share((), lambda _: few)
    for _ in range(50):
        with contextlib.suppress(errors.QuotaExceededError):
            rates.take(few, SMALL)
    rates.share((), lambda _: many)

    with pytest.raises(errors.QuotaExceededError) as refused:
        rates.take(many, SMALL)

    assert refused.value.retry_after.total_seconds() < 0.1
