"""Calls the engine's database functions without an engine.

Parameters are found by their names in pg_proc, so that a function may get a new one without a
change here: what is not named here is null.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Self

import psycopg
from psycopg import sql

from bench.parts import plans
from progressor.domain.processes.process import ProcessKey
from progressor.storage.postgres.rows.arrays import COLUMNS, Column

REPLICA_ID = 0
"""The id of no replica. Leases last milliseconds; a scan acts only if it sees one twice."""
_LEASE_SECONDS = 60.0
_COLUMN_BY_OID = {column.array_oid: column for column in COLUMNS.values()}

_FIND = """
SELECT p.pronamespace::regnamespace::text, p.proargnames[:p.pronargs], p.proargtypes::oid[]
FROM pg_proc p
JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE p.proname = %s AND n.nspname LIKE %s
ORDER BY n.oid DESC
LIMIT 1
"""

Item = Mapping[str, Any]
_Connection = psycopg.AsyncConnection[tuple[Any, ...]]


@dataclasses.dataclass(frozen=True, slots=True)
class _Function:
    """A function of the newest release in the database, or of one schema."""

    statement: bytes
    columns: Mapping[str, type[Column] | None]

    @classmethod
    async def found(cls, connection: _Connection, name: str, schema: str) -> Self:
        cursor = await connection.execute(_FIND, (name, schema))
        row = await cursor.fetchone()
        if row is None:
            message = f"the database has no function {name} in a schema like {schema}"
            raise RuntimeError(message)
        schema, names, types = row
        statement = sql.SQL("SELECT * FROM {}({})").format(
            sql.Identifier(schema, name), sql.SQL(", ").join([sql.SQL("%b")] * len(names))
        )
        found = zip(names, types, strict=True)
        return cls(statement.as_bytes(), {each: _COLUMN_BY_OID.get(oid) for each, oid in found})

    async def call(
        self, connection: _Connection, items: Sequence[Item], *, given: Item
    ) -> list[dict[str, Any]]:
        """Return the rows, by item if they have one; `given` are parameters without a column."""
        arguments = [
            given.get(name) if column is None else _filled(column, _values(name, items))
            for name, column in self.columns.items()
        ]
        cursor = await connection.execute(self.statement, arguments, prepare=True, binary=True)
        names = [column.name for column in cursor.description or ()]
        rows = [dict(zip(names, row, strict=True)) for row in await cursor.fetchall()]
        return sorted(rows, key=lambda row: int(row.get("item", 0)))


@dataclasses.dataclass(frozen=True, slots=True)
class Functions:
    starting: _Function
    admission: _Function
    settlement: _Function
    claims: _Function

    @classmethod
    async def found(cls, connection: _Connection, schema: str = "progressor%") -> Self:
        """Find them in the newest schema whose name matches a pattern of LIKE."""
        names = ("admit_starts", "admit_requests", "settle_tasks", "claim_tasks")
        return cls(*[await _Function.found(connection, name, schema) for name in names])

    async def start(self, connection: _Connection, items: Sequence[Item]) -> list[dict[str, Any]]:
        """Start processes, none of which may exist."""
        return await self._admit(self.starting, connection, items)

    async def admit(self, connection: _Connection, items: Sequence[Item]) -> list[dict[str, Any]]:
        """Admit calls, all of which must find their processes free."""
        return await self._admit(self.admission, connection, items)

    async def _admit(
        self, function: _Function, connection: _Connection, items: Sequence[Item]
    ) -> list[dict[str, Any]]:
        rows = await function.call(connection, items, given={"p_replica_id": REPLICA_ID})
        for row in rows:
            if row["verdict"] != "accepted" or row["token"] is None:
                message = f"a request was not admitted to run: {row['verdict']}"
                raise RuntimeError(message)
        return rows

    async def settle(self, connection: _Connection, items: Sequence[Item]) -> list[dict[str, Any]]:
        """Settle tasks, and return the rows of those that still had their lease."""
        given = {"p_replica_id": REPLICA_ID, "p_grace": 2.0}
        return await self.settlement.call(connection, items, given=given)

    async def claim(self, connection: _Connection, items: Sequence[Item]) -> list[dict[str, Any]]:
        """Claim tasks by their ids, and return those that were due, in any order."""
        given = {"p_replica_id": REPLICA_ID, "p_grace": 2.0, "p_wait": True, "p_ahead": 0.0}
        return await self.claims.call(connection, items, given=given)


def starts(keys: Sequence[ProcessKey]) -> list[Item]:
    return calls(keys)  # whose parameters include those of starts


def calls(keys: Sequence[ProcessKey]) -> list[Item]:
    return [
        {
            **dataclasses.asdict(key),
            "head": number,  # the only task of its process
            "task_type": "call",
            "args": b"a" * plans.SIZE,
            "waits": True,
            "run": True,
            "expires_after": _LEASE_SECONDS,
        }
        for number, key in enumerate(keys, start=1)
    ]


def settlements(keys: Sequence[ProcessKey], admitted: Sequence[Item]) -> list[Item]:
    """Return the items of a settlement: one event and an answer each, like the processor's."""
    return [
        {
            **dataclasses.asdict(key),
            "token": task["token"],
            "outcome": "finish",
            "expires_after": _LEASE_SECONDS,
            "response": b"r" * 16,
            "events_until": number,
            "event_payload": b"e" * plans.SIZE,
            "event_format_version": 1,
        }
        for number, (key, task) in enumerate(zip(keys, admitted, strict=True), start=1)
    ]


def _filled(column: type[Column], values: list[Any]) -> Column | None:
    """Return an array; None if no item has a value, as in the engine."""
    return None if values.count(None) == len(values) else column(values)


def _values(name: str, items: Sequence[Item]) -> list[Any]:
    prefix, _, field = name.partition("_")
    wanted = f"event_{field}" if prefix == "e" else field
    return [item.get(wanted) for item in items]
