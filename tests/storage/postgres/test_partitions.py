"""Tables partitioned by slot: made with a new database, and no row is taken for another one."""

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from progressor import errors
from progressor.domain.processes.admission import Verdict
from progressor.domain.processes.process import ProcessKey
from progressor.domain.processes.task import TaskType
from progressor.storage.doctor.findings import State
from progressor.storage.postgres import statements
from progressor.storage.postgres.migrations import migrate
from progressor.storage.postgres.schema import partitions
from progressor.storage.processes.admissions import Entry
from tests.support.clock import ManualClock
from tests.support.postgres import schema
from tests.support.postgres.cluster import Cluster
from tests.support.postgres.locks import until_blocked
from tests.support.storage.doctor.doctor import execute, find
from tests.support.storage.store import (
    EXPIRES_AFTER,
    Store,
    a_request,
    create_namespace,
    fresh_key,
    running_stores,
    success,
)

COUNT = 4
WRITTEN_BY_PLACE = (
    "processes", "tasks", "events", "schedule", "running", "jobs", "job_nodes", "schedule_runs"
)  # fmt: skip
_WRITE = re.compile(
    r"\b(\w+)\.ctid = (\w+)\.\w+\s+(AND \1\.slot BETWEEN (\w+\.slot|p_slot) AND \4)?"
)


@pytest.fixture
def partitioned(cluster: Cluster) -> Iterator[str]:
    """Return a new database with partitions."""
    conninfo = cluster.create_database()
    migrate(conninfo, partition_count=COUNT)
    yield conninfo
    cluster.drop_database(conninfo)


@pytest.fixture
def observer(partitioned: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(partitioned, autocommit=True) as connection:
        yield connection


@pytest.fixture
def all_partitioned(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return one in which every table is partitioned that has rows written by their place."""
    monkeypatch.setattr(partitions, "TABLES", WRITTEN_BY_PLACE)
    conninfo = cluster.create_database()
    migrate(conninfo, partition_count=COUNT)
    create_namespace(conninfo)
    return conninfo


def one_key_each() -> list[ProcessKey]:
    """Return a process for each partition."""
    keys: dict[int, ProcessKey] = {}
    while len(keys) < COUNT:
        key = fresh_key()
        keys.setdefault(key.slot * COUNT // 1024, key)
    return list(keys.values())


class TestRows:
    async def test_at_the_same_place_of_other_partitions_are_left_alone(
        self, all_partitioned: str
    ) -> None:
        """A ctid is unique in its partition alone."""
        async with running_stores(all_partitioned, count=1, clock=ManualClock()) as (store,):
            await store.beat()
            with psycopg.connect(all_partitioned, autocommit=True) as observer:
                await self._settle_one(store, observer)

    async def _settle_one(self, store: Store, observer: psycopg.Connection[Any]) -> None:
        inits = [await store.start(key) for key in one_key_each()]
        places = observer.execute(
            "SELECT count(DISTINCT ctid), count(DISTINCT tableoid) FROM progressor.running"
        ).fetchone()
        assert places == (1, COUNT)

        await store.settled(inits[0], success(events=1))

        count = "SELECT count(*) FROM progressor."
        for rows in (
            "processes WHERE status = 'running'",
            "tasks WHERE status = 'finished'",
            "events",
        ):
            assert observer.execute(f"{count}{rows}".encode()).fetchone() == (1,), rows
        assert observer.execute(f"{count}running".encode()).fetchone() == (COUNT - 1,)

    def test_are_written_by_place_and_slot(self) -> None:
        writes = [
            (file.stem, found[3])
            for file in statements.functions()
            # Whose tables have no slot.
            if file.stem not in {"settle_gates", "find_blocked"}
            for found in _WRITE.finditer(file.read_text("utf-8"))
        ]

        assert len(writes) > 30
        assert [name for name, slot in writes if slot is None] == []

    @pytest.mark.parametrize(
        ("task_type", "verdict"),
        [
            (TaskType.CALL, Verdict.ACCEPTED),
            (TaskType.INIT, Verdict.PROCESS_ALREADY_EXISTS),
        ],
    )
    async def test_that_were_changed_meanwhile_are_locked(
        self,
        partitioned: str,
        observer: psycopg.Connection[Any],
        task_type: TaskType,
        verdict: Verdict,
    ) -> None:
        """PostgreSQL 18 loses them where a sort stands between a lock and a pruned join."""
        create_namespace(partitioned)
        async with running_stores(partitioned, count=1, clock=ManualClock()) as (store,):
            await store.beat()
            keys = one_key_each()
            for key in keys:
                await store.started(key)
            entries = [Entry(a_request(key, task_type), True, EXPIRES_AFTER) for key in keys]
            with psycopg.connect(partitioned) as holder:
                holder.execute("UPDATE progressor.processes SET aux_state = 'changed'")
                asked = [store.admissions.submit(entry) for entry in entries]
                await until_blocked(observer)
                holder.commit()

            assert [(await each)[0].verdict for each in asked] == COUNT * [verdict]


class TestANewDatabase:
    def test_has_the_same_columns_constraints_and_indexes(
        self, database: str, observer: psycopg.Connection[Any]
    ) -> None:
        with psycopg.connect(database) as plain:
            definitions = _definitions(plain)

        assert _definitions(observer) == definitions

    def test_passes_the_storage_parameters_on(
        self, database: str, observer: psycopg.Connection[Any]
    ) -> None:
        query = "SELECT DISTINCT reloptions FROM pg_class WHERE relname ~ %s AND relkind = 'r'"
        for table in partitions.TABLES:
            found = observer.execute(query, [f"^{table}_\\d\\d$"]).fetchall()
            with psycopg.connect(database) as plain:
                assert found == plain.execute(query, [f"^{table}$"]).fetchall()

    def test_is_migrated_again(self, partitioned: str) -> None:
        assert migrate(partitioned, partition_count=COUNT) == []
        assert migrate(partitioned) == []

    @pytest.mark.parametrize("count", [2, 3, 64])
    def test_divides_all_slots(self, count: int) -> None:
        ranges = partitions.slot_ranges(count)

        assert len(ranges) == count
        assert [end for _, end in ranges[:-1]] == [begin for begin, _ in ranges[1:]]

    def test_keeps_its_number_of_partitions(self, partitioned: str) -> None:
        with pytest.raises(errors.MigrationError, match="have 4 partitions, not 8"):
            migrate(partitioned, partition_count=8)

    async def test_is_refused_if_it_has_processes(self, own_database: str) -> None:
        create_namespace(own_database)
        async with running_stores(own_database, count=1, clock=ManualClock()) as (store,):
            await store.start(fresh_key())

        with pytest.raises(errors.MigrationError, match="processes has rows"):
            migrate(own_database, partition_count=COUNT)
        assert find(own_database, "partitions").words == "no table is partitioned"


class TestTheDoctor:
    def test_tells_how_many_there_are(self, partitioned: str) -> None:
        found = find(partitioned, "partitions")

        assert (found.state, found.words) == (State.OK, "3 tables in 4 partitions each, by slot")
        assert find(partitioned, "indexes").state is State.OK

    @pytest.mark.parametrize(
        ("change", "offender"),
        [
            ("DROP TABLE progressor.tasks_01", "tasks: some slots have no partition"),
            ("DROP TABLE progressor.tasks_03", "tasks: some slots have no partition"),
            (
                "CREATE TABLE progressor.rest PARTITION OF progressor.tasks DEFAULT",
                "tasks: rest is a default partition",
            ),
            (
                (
                    "ALTER TABLE progressor.events RENAME TO gone;"
                    "CREATE TABLE progressor.events (LIKE progressor.gone)"
                ),
                "events: not partitioned",
            ),
            (
                (
                    "DROP TABLE progressor.held;"
                    "CREATE TABLE progressor.held (slot smallint) PARTITION BY HASH (slot);"
                    "CREATE TABLE progressor.held_0 PARTITION OF progressor.held"
                    " FOR VALUES WITH (MODULUS 2, REMAINDER 0)"
                ),
                "held: partitioned by HASH (slot), not by RANGE (slot)",
            ),
            (
                (
                    "DROP TABLE progressor.events_02, progressor.events_03;"
                    "CREATE TABLE progressor.events_02 PARTITION OF progressor.events"
                    " FOR VALUES FROM (512) TO (MAXVALUE)"
                ),
                "events: 3 partitions with other ranges of slots than those of processes (4)",
            ),
        ],
    )
    def test_refuses_what_is_not_supported(
        self, partitioned: str, change: str, offender: str
    ) -> None:
        execute(partitioned, change)

        found = find(partitioned, "partitions")

        assert found.state is State.FAILED
        assert offender in found.offenders


def _definitions(connection: psycopg.Connection[Any]) -> list[str]:
    """Return the statements of `schema_of` that make our tables, but for what partitions have."""
    tables = "|".join(partitions.TABLES)
    text = schema.schema_of(connection).replace("ON ONLY", "ON")
    return [
        re.sub(r" WITH \(.*\)", "", statement, flags=re.DOTALL)
        for statement in text.split(";\n\n")
        if re.search(rf"(TABLE|INDEX \w+ ON) progressor\.({tables})\b", statement)
    ]
