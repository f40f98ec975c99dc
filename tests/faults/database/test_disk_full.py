"""The disk of PostgreSQL is full for a while: writes fail with 53100, of one kind or all of them.

A trigger says so, as the server does where it cannot make a table longer: reads go on, connections
stay as they are. Whatever was decided waits until there is room again.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import psycopg
import pytest
import pytest_asyncio
from psycopg import sql

from tests.support.engine.replica import Replica, answering, running_replica, timer
from tests.support.faults.ground import QUICK, Ground, insisted, open_ground
from tests.support.postgres.proxy import Proxy
from tests.support.processor.scripted import Answer

pytestmark = pytest.mark.asyncio(loop_scope="module")

COUNT = 8
ATTEMPT_SECONDS = 1.9
DENIED = 5
"""Writes that must have failed before there is room again."""

FULL: Mapping[str, Sequence[str]] = {
    "admissions": ("tasks",),
    "settlements": ("events",),
    "claims": ("running",),
    "heartbeats": ("replicas",),
    "all that is written": (
        "processes", "tasks", "schedule", "running", "events", "replies", "replicas",
    ),
}  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(proxy: Proxy, quick_news: None) -> AsyncIterator[Replica]:  # noqa: ARG001
    async with running_replica(proxy.conninfo, QUICK) as replica:
        yield replica


@pytest_asyncio.fixture(loop_scope="module")
async def ground(
    proxy: Proxy, replica: Replica, observer: psycopg.Connection[Any]
) -> AsyncIterator[Ground]:
    async with open_ground(proxy, replica, observer) as ground:
        yield ground


@contextlib.contextmanager
def full_disk(observer: psycopg.Connection[Any], tables: Sequence[str]) -> Iterator[None]:
    """Have each write to these tables fail for as long as the context lasts."""
    observer.execute("CREATE SEQUENCE public.denied")
    observer.execute(
        "CREATE FUNCTION public.deny() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " PERFORM nextval('public.denied');"
        " RAISE EXCEPTION 'could not extend file: No space left on device'"
        " USING ERRCODE = '53100'; END; $$"
    )
    for table in tables:
        observer.execute(
            sql.SQL(
                "CREATE TRIGGER disk_full BEFORE INSERT OR UPDATE ON {}"
                " FOR EACH ROW EXECUTE FUNCTION public.deny()"
            ).format(sql.Identifier("progressor", table))
        )
    try:
        yield
    finally:
        observer.execute("DROP FUNCTION public.deny CASCADE")
        observer.execute("DROP SEQUENCE public.denied")


def denied(observer: psycopg.Connection[Any]) -> bool:
    """Return whether enough was denied for everybody to have met it."""
    return observer.execute("SELECT last_value >= %s FROM public.denied", [DENIED]).fetchall() == [
        (True,)
    ]


@pytest.mark.parametrize("kind", FULL)
async def test_a_full_disk_is_waited_for_and_everything_is_done_once(
    ground: Ground, kind: str
) -> None:
    called = [ground.fresh() for _ in range(COUNT)]
    for name in called:
        await ground.env.running(name, Answer())
    driven = ground.fresh()
    await ground.env.timed(driven, *[answering(b"tick", set_timer=timer(0.05))] * 4, after=0.1)
    # The last step of the script, which ends it.
    ground.env.processor.on_process(
        driven, *[answering(b"tick", set_timer=timer(0.05))] * 4, answering(b"last")
    )
    async with asyncio.TaskGroup() as group:
        with full_disk(ground.observer, FULL[kind]):
            calls = [group.create_task(call(ground, name), name=name) for name in called]
            await ground.until(lambda: denied(ground.observer))
    await ground.at_rest()

    assert [each.result() for each in calls] == [b"1"] * COUNT
    assert [ground.events(name) for name in called] == [[b"1"]] * COUNT
    assert ground.events(driven)[-1] == b"last"
    ground.judge()


async def call(ground: Ground, name: str) -> bytes:
    """Call a process under a key until it is answered."""
    answer = await insisted(
        lambda: ground.client.call(name, b"1", idempotency_key="k", timeout=ATTEMPT_SECONDS)
    )
    response: bytes = answer.response
    return response
