"""Writes and commits that PostgreSQL refuses, and answers and notifications that are lost.

A trigger refuses writes: a deferred one fails the commit after the rows have come, as a
serialisation failure of a database that is serializable by default would; another one says that the
disk is full, as the server does where it cannot make a table longer. Reads go on, connections stay
as they are.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence

import pytest
from psycopg import sql

from tests.support.engine.replica import Replica, answering, timer
from tests.support.faults.env import FaultEnv, insist
from tests.support.faults.faults import FAULTS
from tests.support.processor.scripted import Answer, Hang

pytestmark = pytest.mark.asyncio(loop_scope="module")

SERIALISATION_FAILURE, DISK_FULL = "40001", "53100"
COUNT = 8
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
ONCE = "CONSTRAINT TRIGGER refuse AFTER INSERT ON {} DEFERRABLE INITIALLY DEFERRED"
ALWAYS = "TRIGGER refuse BEFORE INSERT OR UPDATE ON {}"


@contextlib.contextmanager
def refusing(env: FaultEnv, trigger: str, code: str, *tables: str) -> Iterator[None]:
    """Have writes to these tables refused: once at the commit, or always."""
    env.observer.execute("CREATE SEQUENCE public.refused")
    env.observer.execute(
        sql.SQL(
            "CREATE FUNCTION public.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF nextval('public.refused') <= {} THEN"
            " RAISE EXCEPTION 'refused by a trigger' USING ERRCODE = {}; END IF;"
            " RETURN NULL; END; $$"
        ).format(sql.Literal(1 if trigger == ONCE else 10**9), sql.Literal(code))
    )
    for table in tables:
        on = sql.SQL(trigger).format(sql.Identifier("progressor", table))
        env.observer.execute(
            sql.SQL("CREATE {} FOR EACH ROW EXECUTE FUNCTION public.refuse()").format(on)
        )
    try:
        yield
    finally:
        env.observer.execute("DROP FUNCTION public.refuse CASCADE")
        env.observer.execute("DROP SEQUENCE public.refused")


failing_commit = pytest.mark.parametrize("code", [SERIALISATION_FAILURE, DISK_FULL])


@failing_commit
async def test_a_settlement_whose_commit_failed_is_written_again(env: FaultEnv, code: str) -> None:
    process_id = await env.fresh_running()
    with refusing(env, ONCE, code, "events"):
        answer = await env.client.call(process_id, b"1")
        events = env.events(process_id)
    await env.at_rest()

    assert (answer.response, events) == (b"1", [b"1"])
    assert [request.task.attempt for request in env.asked_for(process_id)] == [1, 1]
    env.judge()


@failing_commit
async def test_an_admission_whose_commit_failed_is_not_acknowledged_before_it_is_there(
    env: FaultEnv, code: str
) -> None:
    process_id = await env.fresh_running()
    with refusing(env, ONCE, code, "tasks"):
        accepted = await insist(
            env.client.call, process_id, b"1", idempotency_key="k", accept_only=True
        )
        tasks = env.tasks(process_id)
    await env.at_rest()

    assert [args for args, _ in tasks] == [b"1"]
    assert env.events(process_id) == [b"1"]
    assert (await env.client.await_task(process_id, task_id=accepted.task_id)).response == b"1"
    env.judge()


@failing_commit
async def test_a_claim_whose_commit_failed_leaves_the_timer_where_it_was(
    env: FaultEnv, code: str
) -> None:
    process_id = env.fresh()
    await env.timed(process_id, answering(b"fired"), after=0.3)
    with refusing(env, ONCE, code, "running"):
        await env.until(lambda: env.events(process_id) == [b"fired"])
    await env.at_rest()

    assert env.events(process_id) == [b"fired"]
    env.judge()


@pytest.mark.parametrize("fault", ["cut after", "cut in the answer"])
async def test_a_settlement_whose_answer_was_lost_is_known_to_be_done_and_its_worker_goes_on(
    env: FaultEnv, fault: str
) -> None:
    process_id = env.fresh()
    env.processor.on_process(
        process_id,
        answering(b"1", set_timer=timer()),
        answering(b"2", set_timer=timer()),
        answering(b"3"),
    )
    before = [env.points.count(point) for point in ("fenced", "zombie_collected")]
    async with env.under('"settle_tasks"(', FAULTS[fault]):
        await env.client.start(process_id)
    await env.at_rest()

    # It is neither taken for one that the fence has refused, nor are its next steps left to a scan.
    assert [env.points.count(point) for point in ("fenced", "zombie_collected")] == before
    assert env.events(process_id) == [b"1", b"2", b"3"]
    assert [request.task.attempt for request in env.asked_for(process_id)] == [1, 1, 1]
    env.judge()


@pytest.mark.parametrize("kind", FULL)
async def test_a_full_disk_is_waited_for_and_everything_is_done_once(
    env: FaultEnv, kind: str
) -> None:
    called = [await env.fresh_running() for _ in range(COUNT)]
    driven = env.fresh()
    ticks = [answering(b"tick", set_timer=timer(0.05))] * 4
    await env.timed(driven, *ticks, answering(b"last"), after=0.1)
    async with asyncio.TaskGroup() as group:
        with refusing(env, ALWAYS, DISK_FULL, *FULL[kind]):
            calls = [
                group.create_task(insist(env.client.call, name, b"1", idempotency_key="k"))
                for name in called
            ]
            enough = f"SELECT FROM public.refused WHERE last_value >= {DENIED}"
            await env.until(lambda: bool(env.rows(enough)))
    await env.at_rest()

    assert [each.result().response for each in calls] == [b"1"] * COUNT
    assert [env.events(name) for name in called] == [[b"1"]] * COUNT
    assert env.events(driven)[-1] == b"last"
    env.judge()


losses = pytest.mark.parametrize(
    "fault", ["cut before", "cut after", "backend terminated", "disk full", "stalled before"]
)


@losses
async def test_a_caller_on_another_replica_is_answered_without_a_notification(
    env: FaultEnv, second_replica: Replica, fault: str
) -> None:
    process_id = env.fresh()
    hang, _ = await env.busy(process_id)
    async with env.client_at(second_replica.address) as elsewhere, asyncio.TaskGroup() as group:
        waiting = group.create_task(elsewhere.call(process_id, b"2"))
        await second_replica.points.wait("admitted", key=env.key(process_id))
        async with env.under("pg_notify(", FAULTS[fault]):
            hang.released.set()
    await env.at_rest()

    assert waiting.result().response == b"2"
    assert env.events(process_id) == [b"busy", b"2"]
    env.judge()


@losses
async def test_a_caller_here_is_answered_although_the_answer_could_not_be_read_at_once(
    env: FaultEnv, second_replica: Replica, fault: str
) -> None:
    process_id = await env.fresh_running(hang := Hang(), Answer())
    async with env.client_at(second_replica.address) as elsewhere, asyncio.TaskGroup() as group:
        await elsewhere.call(process_id, b"busy", accept_only=True)
        await env.asked(process_id, 2)
        waiting = group.create_task(env.client.call(process_id, b"2"))
        await env.points.wait("admitted", 2, key=env.key(process_id))
        async with env.under("LEFT JOIN progressor.replies", FAULTS[fault]):
            hang.released.set()
    await env.at_rest()

    assert waiting.result().response == b"2"
    assert env.events(process_id) == [b"busy", b"2"]
    env.judge()
