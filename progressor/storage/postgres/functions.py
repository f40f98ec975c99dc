"""The functions of the hot path: read from ``priv/functions``, deployed by content.

They live in a schema named after the hash of their texts, created on start if absent: two releases
run side by side on one database, and migrations only ever change tables.

A file states what is special about its function; `_completed` adds what nearly all have in common.
As in CREATE TABLE, ``LIKE name`` stands for the arguments of a function, or the columns of a type.
"""

import functools
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, LiteralString, NamedTuple, TypeVar, overload

import psycopg
from psycopg import sql

from progressor.storage.postgres import statements
from progressor.storage.postgres.pools import Connection
from progressor.storage.postgres.rows import records
from progressor.storage.postgres.rows.arrays import COLUMNS, Column
from progressor.storage.postgres.schema.rights import share_functions

_LOCK = 7_306_914

_STANDARD = """\
LANGUAGE plpgsql
SET search_path FROM CURRENT
"""
_BY_INDEX = """\
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET random_page_cost = 0.1
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
"""
"""What ``BY INDEX`` in a file stands for: one generic plan that reads by key, however many rows the
tables have, and whether or not they have been analysed."""

_BY_ITEM = f"{_BY_INDEX}SET enable_memoize = off\n"
"""What ``BY ITEM`` stands for: the same without a cache of look-ups, which differ for each item."""

_BY_KEY = """\
SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off
SET random_page_cost = 0.1
SET jit = off
"""
"""What ``BY KEY`` stands for: the same for a function that joins nothing large."""

_SETTINGS = {"INDEX": _BY_INDEX, "ITEM": _BY_ITEM, "KEY": _BY_KEY}
_PLACES = "progressor, pg_temp"
"""Where functions look after their own schema. PostgreSQL would look into pg_temp first, where any
user of a pooled session can put a table, unless it is named elsewhere."""

_FUNCTION = "CREATE FUNCTION "
_BODY = "AS $$\n"
_CONFLICTS = "#variable_conflict "
_SIGNATURE = re.compile(
    r"^CREATE FUNCTION (\w+)\((.*?)\)$"
    r"(?:\s*^RETURNS (?:TABLE \((?P<table>.*?)\)|SETOF (?P<type>\w+)|.*?)$)?",
    re.MULTILINE | re.DOTALL,
)
_LIKE = re.compile(r"\bLIKE (\w+)")
_TYPE = re.compile(r"^CREATE TYPE (\w+) AS \((.*?)\);$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"--.*")
_PREFIX = re.compile(r"^p_")
_TEXTS = frozenset({"text", "text[]"})
_Cursor = psycopg.Cursor[tuple[Any, ...]]

R_co = TypeVar("R_co", covariant=True)


class Function(Generic[R_co]):
    """A function with its arguments and the columns of its rows by the names in its file."""

    def __init__(
        self,
        statement: bytes,
        arguments: Mapping[str, type[Column] | None],
        columns: tuple[str, ...],
        make_row: Callable[[Any], R_co],
    ) -> None:
        self.statement = statement
        self.arguments = arguments
        self.columns = columns
        self.make_row = make_row

    def bind(self, **named: Any) -> list[Any]:  # noqa: ANN401  as the file says
        """Return the arguments in the order of the statement; names without the ``p_`` of the file.

        An array is given as any iterable and becomes a column of its type.

        Raises:
            TypeError: An argument is missing or unknown.
        """
        if len(named) > len(self.arguments):
            unknown = sorted(named.keys() - self.arguments.keys())
            raise TypeError(f"{self.statement!r} has no arguments {unknown}")
        try:
            return [
                value if column is None or value is None else column(value)
                for name, column in self.arguments.items()
                for value in (named[name],)
            ]
        except KeyError as error:
            raise TypeError(f"{self.statement!r} lacks the argument {error}") from None

    async def rows(self, connection: Connection, **named: object) -> list[R_co]:
        """Call it on a connection and return its rows.

        Raises:
            TypeError: As `bind`.
            psycopg.Error: As the function does.
        """
        cursor = await connection.execute(self.statement, self.bind(**named), binary=True)
        return list(map(self.make_row, await cursor.fetchall()))


class _Signature(NamedTuple):
    arguments: Mapping[str, type[Column] | None]
    """By name; with the columns for arrays."""
    parameters: LiteralString
    """As a statement passes them."""
    columns: tuple[str, ...]
    """Empty for a function that returns a value."""


class Functions:
    """The functions of this release and the schema they are in; ``texts`` are their definitions.

    ``search_path`` is where they look for what they name.
    """

    def __init__(self) -> None:
        self.texts, self._signatures = _read(tuple(statements.functions()))
        digest = hashlib.sha256("\0".join((*self.texts, _PLACES)).encode()).hexdigest()
        self.schema = f"progressor_{digest[:12]}"
        self.search_path = f"{self.schema}, {_PLACES}"

    @overload
    def call(self, name: LiteralString) -> Function[tuple[Any, ...]]: ...

    @overload
    def call(self, name: LiteralString, row: type[R_co]) -> Function[R_co]: ...

    def call(self, name: LiteralString, row: type[Any] = tuple) -> Function[Any]:
        """Return a function as this release calls it.

        Args:
            name: Of its file and of the function.
            row: What `records.reader` makes of its columns, all of which it has to read.
        """
        assert name in self._signatures, f"priv/functions/**/{name}.sql does not exist"
        arguments, parameters, columns = self._signatures[name]
        make_row = row if row is tuple else records.reader(row, columns, whole=True)
        # As bytes: psycopg remembers how it read them, and composes a Composed anew each time.
        statement = (
            sql.SQL("SELECT * FROM {}.{}({})")
            .format(sql.Identifier(self.schema), sql.Identifier(name), sql.SQL(parameters))
            .as_bytes()
        )
        return Function(statement, arguments, columns, make_row)

    def audited(self, name: LiteralString, row: type[R_co]) -> Function[R_co]:
        """Return a function of a batch that also inserts the audit entries of what it accepts.

        It has one argument more, the entries of the items, as JSON or null. One statement, so that
        neither is without the other; and the function of those that have no entry stays as it is.
        """
        plain = self.call(name, row)
        before = "NULL"
        if "process_status" in plain.columns:
            before = "jsonb_build_object('status', f.process_status)"
        return Function(
            f"""\
WITH f AS MATERIALIZED ({plain.statement.decode()}),
e AS (
    INSERT INTO progressor.audit_entries (entry, before, after)
    SELECT a.entry::jsonb, {before}, jsonb_build_object('task_id', f.task_id)
    FROM unnest(%b::text[]) WITH ORDINALITY AS a (entry, item)
    JOIN f ON f.item = a.item AND f.verdict = 'accepted'
    WHERE a.entry IS NOT NULL
    ON CONFLICT DO NOTHING
)
SELECT * FROM f""".encode(),  # noqa: S608  ours
            {**plain.arguments, "audit": COLUMNS["text[]"]},
            plain.columns,
            plain.make_row,
        )

    def deploy(self, cursor: _Cursor) -> bool:
        """Create the functions if they are absent, in the caller's transaction.

        Safe to do from many replicas at once. Returns whether they were absent.
        """
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        cursor.execute("SELECT FROM pg_namespace WHERE nspname = %s", (self.schema,))
        if cursor.fetchone() is not None:
            return False
        schema = sql.Identifier(self.schema)
        cursor.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
        cursor.execute("SELECT set_config('search_path', %s, true)", [self.search_path])
        for text in self.texts:
            cursor.execute(text.encode())
        share_functions(cursor, self.schema)
        return True


# A start needs them three times: for migrations, for the lineage and for the replica.
@functools.cache
def _read(files: tuple[Path, ...]) -> tuple[Sequence[str], Mapping[str, _Signature]]:
    """Return the texts of a release, and what a call needs to know of each function."""
    assert files, "priv/functions is missing from this installation"
    written = [file.read_text("utf-8") for file in files]
    lists = dict(map(_list, written))
    texts = tuple(_completed(text, lists) for text in written)
    return texts, dict(_signature(text, lists) for text in texts if _FUNCTION in text)


def _completed(text: str, lists: Mapping[str, str]) -> str:
    # The few functions in SQL state their language, and are left as they are.
    if _FUNCTION not in text or "\nLANGUAGE " in text:
        return text
    assert _BODY in text, f"cannot find the body of the function in:\n{text}"
    head, body = text.split(_BODY, 1)
    head = _LIKE.sub(lambda found: lists[found[1]].strip(), head)
    for name, settings in _SETTINGS.items():
        head = head.replace(f"\nBY {name}\n", f"\n{settings}")
    conflicts = "" if body.startswith(_CONFLICTS) else f"{_CONFLICTS}use_column\n"
    return f"{head}{_STANDARD}{_BODY}{conflicts}{body}"


def _list(text: str) -> tuple[str, str]:
    bare = _COMMENT.sub("", text)
    found = _TYPE.search(bare) or _SIGNATURE.search(bare)
    assert found is not None, f"cannot read the signature of the function in:\n{text}"
    return found[1], found[2]


def _signature(text: str, lists: Mapping[str, str]) -> tuple[str, _Signature]:
    found = _SIGNATURE.search(_COMMENT.sub("", text))
    assert found is not None
    declared = _declared(found[2])
    given = [it for it in declared if it[0] != "OUT"]
    table = found["table"] or lists.get(found["type"] or "", "")
    columns = [it for it in declared if it[0] == "OUT"] + _declared(table)
    return found[1], _Signature(
        {_PREFIX.sub("", name): COLUMNS.get(" ".join(words)) for name, *words in given},
        _parameters([words[0] for _, *words in given]),
        tuple(it[it[0] == "OUT"] for it in columns),
    )


def _parameters(types: Sequence[str]) -> LiteralString:
    """Return the parameters of a call, with the collation of the keys.

    A function compares and orders all its text arguments by the collation of any one of them.
    Locks are taken in the order of keys: without it, those that a function orders by its arguments
    and those that it orders by columns would be taken in different orders.
    """
    first = next((place for place, each in enumerate(types) if each in _TEXTS), None)
    return ", ".join('%b COLLATE "C"' if place == first else "%b" for place in range(len(types)))


def _declared(declarations: str) -> list[list[str]]:
    return [it.split() for it in declarations.split(",") if it.strip()]
