"""The commit fails after the rows have come: nothing was done, and the engine knows it.

A deferred trigger does it, as a serialisation failure of a database that is serializable by default
would: PostgreSQL sends the rows first and the error after them. And the other way round: it was
done, and the answer is lost.
"""

import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psycopg
import pytest
import pytest_asyncio
from psycopg import sql

from tests.support.engine.replica import answering, running_replica, timer
from tests.support.faults.faults import FAULTS
from tests.support.faults.ground import QUICK, Ground, insisted, open_ground
from tests.support.postgres.proxy import Proxy

pytestmark = pytest.mark.asyncio(loop_scope="module")

SERIALISATION_FAILURE, DISK_FULL = "40001", "53100"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ground(
    proxy: Proxy,
    observer: psycopg.Connection[Any],
    quick_news: None,  # noqa: ARG001
) -> AsyncIterator[Ground]:
    async with (
        running_replica(proxy.conninfo, QUICK) as replica,
        open_ground(proxy, replica, observer) as ground,
    ):
        yield ground


@contextlib.contextmanager
def failing_commit(observer: psycopg.Connection[Any], table: str, code: str) -> Iterator[None]:
    """Have the next commit fail that has inserted into a table."""
    observer.execute("CREATE SEQUENCE public.commits")
    observer.execute(
        sql.SQL(
            "CREATE FUNCTION public.fail_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF nextval('public.commits') = 1 THEN"
            " RAISE EXCEPTION 'the commit fails' USING ERRCODE = {}; END IF;"
            " RETURN NULL; END; $$"
        ).format(sql.Literal(code))
    )
    observer.execute(
        sql.SQL(
            "CREATE CONSTRAINT TRIGGER fails_once AFTER INSERT ON {}"
            " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION public.fail_once()"
        ).format(sql.Identifier("progressor", table))
    )
    try:
        yield
    finally:
        observer.execute("DROP FUNCTION public.fail_once CASCADE")
        observer.execute("DROP SEQUENCE public.commits")


@pytest.mark.parametrize("code", [SERIALISATION_FAILURE, DISK_FULL])
async def test_a_settlement_whose_commit_failed_is_written_again(ground: Ground, code: str) -> None:
    process_id = ground.fresh()
    await ground.env.running(process_id)
    with failing_commit(ground.observer, "events", code):
        answer = await ground.client.call(process_id, b"1")
        events = ground.events(process_id)
    await ground.at_rest()

    assert (answer.response, events) == (b"1", [b"1"])
    assert [it.task.attempt for it in ground.env.asked_for(process_id)] == [1, 1]
    ground.judge()


@pytest.mark.parametrize("code", [SERIALISATION_FAILURE, DISK_FULL])
async def test_an_admission_whose_commit_failed_is_not_acknowledged_before_it_is_there(
    ground: Ground, code: str
) -> None:
    process_id = ground.fresh()
    await ground.env.running(process_id)
    with failing_commit(ground.observer, "tasks", code):
        accepted = await insisted(
            lambda: ground.client.call(
                process_id, b"1", idempotency_key="k", accept_only=True, timeout=1.9
            )
        )
        tasks = ground.tasks(process_id)
    await ground.at_rest()

    assert [args for args, _ in tasks] == [b"1"]
    assert ground.events(process_id) == [b"1"]
    assert (await ground.client.await_task(process_id, task_id=accepted.task_id)).response == b"1"
    ground.judge()


@pytest.mark.parametrize("code", [SERIALISATION_FAILURE, DISK_FULL])
async def test_a_claim_whose_commit_failed_leaves_the_timer_where_it_was(
    ground: Ground, code: str
) -> None:
    process_id = ground.fresh()
    await ground.env.timed(process_id, answering(b"fired"), after=0.3)
    with failing_commit(ground.observer, "running", code):
        await ground.until(lambda: ground.events(process_id) == [b"fired"])
    await ground.at_rest()

    assert ground.events(process_id) == [b"fired"]
    ground.judge()


@pytest.mark.parametrize("fault", ["cut after", "cut in the answer"])
async def test_a_settlement_whose_answer_was_lost_is_known_to_be_done_and_its_worker_goes_on(
    ground: Ground, fault: str
) -> None:
    process_id, points = ground.fresh(), ground.env.points
    ground.env.processor.on_process(
        process_id,
        answering(b"1", set_timer=timer()),
        answering(b"2", set_timer=timer()),
        answering(b"3"),
    )
    before = [points.count(point) for point in ("fenced", "zombie_collected")]
    async with ground.under(FAULTS[fault], '"settle_tasks"('):
        await ground.client.start(process_id)
    await ground.at_rest()

    # It is neither taken for one that the fence has refused, nor are its next steps left to a scan.
    assert [points.count(point) for point in ("fenced", "zombie_collected")] == before
    assert ground.events(process_id) == [b"1", b"2", b"3"]
    assert [it.task.attempt for it in ground.env.asked_for(process_id)] == [1, 1, 1]
    ground.judge()
