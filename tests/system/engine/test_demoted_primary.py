"""A demoted primary counts as unavailable, until it or another server takes writes."""

import asyncio
import contextlib
import dataclasses
import functools
import itertools
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

import psycopg
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from progressor import errors
from progressor.settings.sections import Database
from progressor.storage.postgres.migrations import migrate
from progressor.storage.postgres.writer import connection_string
from progressor.storage.processes.results import listen
from tests.support.engine.points import PATIENCE_SECONDS, eventually
from tests.support.engine.replica import (
    LONG_LEASE,
    Env,
    answering,
    health_becomes,
    open_env,
    refusal,
    response,
    running_replica,
)
from tests.support.faults.load import Load, judged_load
from tests.support.postgres.cluster import Cluster, own_cluster
from tests.support.postgres.pair import Pair, open_pair, writing
from tests.support.processor.scripted import Hang
from tests.support.storage.doctor.invariants import broken_invariants

pytestmark = pytest.mark.asyncio(loop_scope="module")


SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def demote(cluster: Cluster) -> None:
    await asyncio.to_thread(cluster.switch_writes, refused=True)


async def promote(cluster: Cluster) -> None:
    await asyncio.to_thread(cluster.switch_writes, refused=False)


@contextlib.asynccontextmanager
async def undamaged_load(env: Env, conninfo: str) -> AsyncIterator[Load]:
    """Have callers call while the context lasts; nothing of it is lost or done twice."""
    async with judged_load(env, conninfo) as load:
        yield load
        await load.resumed()
    with psycopg.connect(conninfo, autocommit=True) as observer:
        assert broken_invariants(observer) == {}


# How long a request looks for a server that takes writes, before it is refused.
SETTINGS: Mapping[str, str] = {**LONG_LEASE, "database.connect_timeout_seconds": "1"}


@pytest.fixture(scope="module", autouse=True)
def quick_probes() -> Iterator[None]:
    """Have who only listens look every moment whether the server still takes writes."""
    with pytest.MonkeyPatch.context() as patch:
        quick = functools.partial(listen, probe_seconds=0.2)
        patch.setattr("progressor.storage.processes.results.listen", quick)
        yield


class TestTheOnlyServer:
    @pytest_asyncio.fixture(loop_scope="module")
    async def env(self, conninfo: str) -> AsyncIterator[Env]:
        async with running_replica(conninfo, SETTINGS) as replica, open_env(replica) as env:
            yield env

    async def test_is_away_while_it_takes_no_writes(self, env: Env, mortal: Cluster) -> None:
        await env.running("p")
        await demote(mortal)
        await health_becomes(env.replica.address, NOT_SERVING)
        status = await refusal(env.client.call("p", b"lost"))
        await promote(mortal)
        await health_becomes(env.replica.address, SERVING)
        answer = await env.client.call("p", b"1")

        assert status.reason == "STORAGE_UNAVAILABLE"
        assert status.retry_after is not None
        assert answer.response == b"1"

    async def test_gets_no_step_twice_and_none_lost_under_load(
        self, env: Env, mortal: Cluster, conninfo: str
    ) -> None:
        async with undamaged_load(env, conninfo):
            await demote(mortal)
            await health_becomes(env.replica.address, NOT_SERVING)
            await promote(mortal)

    async def test_is_left_by_all_connections_also_by_those_that_only_read(
        self, env: Env, mortal: Cluster
    ) -> None:
        await env.running("p")
        await demote(mortal)
        try:
            await asyncio.to_thread(mortal.wait_until_left)
            status = await refusal(env.client.get("p", timeout=1))
        finally:
            await promote(mortal)
        await health_becomes(env.replica.address, SERVING)

        # Which of the two depends on how long the pool looks for another server.
        assert status.reason in {"STORAGE_UNAVAILABLE", "DEADLINE_EXCEEDED"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Successor:
    """A second server with the schema and no data, and how to connect to it or to both."""

    conninfo: str
    both: str


@pytest.fixture
def successor(conninfo: str) -> Iterator[Successor]:
    name = str(conninfo_to_dict(conninfo)["dbname"])
    with own_cluster() as cluster:
        with psycopg.connect(cluster.conninfo, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        created = make_conninfo(cluster.conninfo, dbname=name)
        migrate(created)
        hosts = [str(conninfo_to_dict(each)["host"]) for each in (conninfo, created)]
        both = make_conninfo(conninfo, host=",".join(hosts), port="5432,5432")
        yield Successor(conninfo=created, both=both)


async def test_of_two_servers_the_one_that_takes_writes_is_found(
    mortal: Cluster, successor: Successor
) -> None:
    try:
        async with running_replica(successor.both, SETTINGS) as replica:
            # To the successor its namespace is unknown, also when it is left.
            with contextlib.suppress(errors.NamespaceNotFoundError):
                async with open_env(replica) as before:
                    await before.client.start("p", b"old")
                    await demote(mortal)
                    await asyncio.to_thread(mortal.wait_until_left)
                    await health_becomes(replica.address, SERVING)
            async with open_env(replica) as after:
                answer = await after.client.start("p", b"new")
                with psycopg.connect(successor.conninfo, autocommit=True) as observer:
                    row = observer.execute("SELECT count(*) FROM progressor.namespaces").fetchone()
    finally:
        await promote(mortal)

    assert answer.response == b"new"
    assert row == (1,)


async def test_of_two_servers_the_one_that_takes_writes_is_migrated(
    mortal: Cluster, successor: Successor
) -> None:
    await demote(mortal)
    try:
        migrating = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "progressor", "migrate", "--set", f"database.dsn={successor.both}"
        )
        async with asyncio.timeout(PATIENCE_SECONDS):
            code = await migrating.wait()
    finally:
        await promote(mortal)

    assert code == 0


async def test_who_listens_leaves_a_server_that_takes_no_writes_for_the_one_that_does(
    mortal: Cluster, successor: Successor
) -> None:
    dsn = connection_string(Database(dsn=successor.both), successor.both, application="listener")
    words = listen(dsn, 7, probe_seconds=0.05)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await anext(words)
            await demote(mortal)
            with pytest.raises(errors.StorageReadOnlyError):
                await anext(words)
            words = listen(dsn, 7)
            await anext(words)
            with psycopg.connect(successor.conninfo, autocommit=True) as other:
                other.execute("NOTIFY progressor_7, '1'")
            word = await anext(words)
    finally:
        await words.aclose()  # type: ignore[attr-defined]  # an async generator, said more loosely
        await promote(mortal)

    assert word.task_ids == (1,)


class TestAStandbyThatTakesOver:
    """It has all that was answered, and the engine goes on with it by itself."""

    @pytest.fixture
    def pair(self) -> Iterator[Pair]:
        with open_pair() as pair:
            yield pair

    @pytest.fixture
    def both(self, pair: Pair) -> str:
        """Return how to connect to a database on two servers."""
        created = pair.primary.create_database()
        migrate(created)
        return pair.both(created)

    @pytest_asyncio.fixture(
        loop_scope="module",
        params=[True, pytest.param(False, marks=pytest.mark.slow)],
        ids=["streams and sessions", "unary calls"],
    )
    async def env(self, both: str, request: pytest.FixtureRequest) -> AsyncIterator[Env]:
        """Return an environment on an engine that knows of both servers."""
        async with (
            running_replica(both, SETTINGS) as replica,
            open_env(replica, streaming=request.param, session=request.param) as env,
        ):
            yield env

    @pytest.mark.slow
    async def test_goes_on_where_the_primary_was_killed_under_load(
        self, env: Env, pair: Pair, both: str
    ) -> None:
        async with undamaged_load(env, writing(both)):
            await asyncio.to_thread(pair.fail_over)

    @pytest.mark.slow
    async def test_changes_places_with_the_primary_and_back_under_load(
        self, env: Env, pair: Pair, both: str
    ) -> None:
        async with undamaged_load(env, writing(both)) as load:
            await asyncio.to_thread(pair.switch_over)
            await load.resumed()
            await asyncio.to_thread(pair.switch_over)

    async def test_goes_on_where_the_primary_stays_and_takes_no_writes(
        self, env: Env, pair: Pair, both: str
    ) -> None:
        async with undamaged_load(env, writing(both)):
            await demote(pair.primary)
            await health_becomes(env.replica.address, NOT_SERVING)
            await asyncio.to_thread(pair.primary.wait_until_left)
            await asyncio.to_thread(pair.standby.promote)


class TestAStandbyThatLacksCommits:
    """It takes over as an asynchronous one does: what the primary had acknowledged last is gone."""

    @pytest.fixture
    def pair(self) -> Iterator[Pair]:
        with open_pair(synchronous=False) as pair:
            yield pair

    @pytest_asyncio.fixture(loop_scope="module")
    async def env(self, pair: Pair) -> AsyncIterator[Env]:
        created = pair.primary.create_database()
        migrate(created)
        async with (
            running_replica(pair.both(created), SETTINGS) as replica,
            open_env(replica) as env,
        ):
            yield env

    async def test_answers_no_one_with_what_the_other_future_decided(
        self, env: Env, pair: Pair
    ) -> None:
        await env.running("p")
        await asyncio.to_thread(pair.cut_off_standby)
        paying = Hang(response=response(b"paid", response=b"paid 1,000,000"))
        asking = answering(b"asked", response=b"7")
        env.processor.on_process("p", answering(b"lost"), paying, asking)
        await env.client.call("p", b"acknowledged, and lost")
        caller = asyncio.create_task(refusal(env.client.call("p", b"pay", timeout=30)))
        await env.asked("p", 3)
        await asyncio.to_thread(pair.fail_over)
        told = await caller
        await health_becomes(env.replica.address, SERVING)
        answer = await env.client.call("p", b"what is the balance?")
        paying.released.set()
        after = await env.client.get("p")

        *_, lost, asked = env.asked_for("p")
        assert told.reason == "STORAGE_UNAVAILABLE"
        assert answer.response == b"7"
        assert [event.payload for event in after.history] == [b"asked"]
        assert asked.epoch > lost.epoch
        assert (asked.task.token, asked.task.task_id) > (lost.task.token, lost.task.task_id)
        assert asked.process.last_event_id == 0

    @pytest.mark.slow
    async def test_gives_out_no_id_and_no_token_again_under_load(
        self, env: Env, pair: Pair
    ) -> None:
        wrong: list[bytes] = []
        count = 0

        async def start(caller: int) -> None:
            nonlocal count
            for number in itertools.count():
                if count < 0:
                    return
                name = f"{caller}/{number}"
                args = name.encode()
                with contextlib.suppress(errors.ProgressorError):
                    answer = await env.client.start(name, args, timeout=2)
                    wrong.extend([answer.response] if answer.response != args else [])
                    count += count >= 0

        async with asyncio.TaskGroup() as group:
            for caller in range(8):
                group.create_task(start(caller), name=f"caller {caller}")
            await _exceeds(lambda: count, 100)
            await asyncio.to_thread(pair.cut_off_standby)
            await _exceeds(lambda: count, count + 200)
            await asyncio.to_thread(pair.fail_over)
            await _exceeds(lambda: count, count + 200)
            count = -1

        leases = {(it.epoch, it.task.token): it.process.process_id for it in env.processor.requests}
        tasks = {it.task.task_id: it.process.process_id for it in env.processor.requests}
        assert wrong == []
        assert len({epoch for epoch, _ in leases}) == 2
        assert len({token for _, token in leases}) == len(leases)
        assert all(tasks[it.task.task_id] == it.process.process_id for it in env.processor.requests)
        with psycopg.connect(writing(pair.both(env.replica.engine.dsn))) as observer:
            assert broken_invariants(observer) == {}


async def _exceeds(count: Callable[[], int], least: int) -> None:
    await eventually(lambda: count() > least)
