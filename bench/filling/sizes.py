"""The size of a process on disk: every table and index, per process, beside its payload."""

import dataclasses
from typing import Any, LiteralString

import psycopg
from rich.table import Table

_RELATIONS: LiteralString = """
    SELECT t.relname, coalesce(i.relname, ''), pg_relation_size(coalesce(i.oid, t.oid))
            + CASE WHEN i.oid IS NULL AND t.reltoastrelid <> 0
                THEN pg_total_relation_size(t.reltoastrelid) ELSE 0 END,
        t.reltuples
    FROM pg_class t
    LEFT JOIN LATERAL (
        SELECT NULL::oid AS oid, NULL::name AS relname
        UNION ALL
        SELECT c.oid, c.relname
        FROM pg_index x
        JOIN pg_class c ON c.oid = x.indexrelid
        WHERE x.indrelid = t.oid
    ) i ON true
    WHERE t.relnamespace = 'progressor'::regnamespace AND t.relkind = 'r'
        AND t.relname IN ('processes', 'tasks', 'events', 'schedule', 'running', 'replies')
    ORDER BY t.relname, i.relname NULLS FIRST"""

# A sample: reading everything would take minutes.
_PAYLOADS: LiteralString = """
    SELECT
        (SELECT avg(octet_length(aux_state) + coalesce(octet_length(metadata::text), 0)
                + coalesce(octet_length(result), 0))
            FROM progressor.processes TABLESAMPLE SYSTEM (%(share)s)),
        (SELECT avg(octet_length(args) + coalesce(octet_length(response), 0))
            FROM progressor.tasks TABLESAMPLE SYSTEM (%(share)s)),
        (SELECT avg(octet_length(payload))
            FROM progressor.events TABLESAMPLE SYSTEM (%(share)s))"""
_SAMPLED = 20_000
_WHOLE = 100.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A table without its indexes, or one of its indexes; ``index`` is empty for the table."""

    table: str
    index: str
    size: int
    row_count: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of a database's relations in bytes, and the payload of an average process."""

    relations: tuple[Relation, ...]
    payload_per_process: float

    @property
    def process_count(self) -> float:
        counts = [each.row_count for each in self.relations if each.table == "processes"]
        return max(1.0, counts[0])

    @property
    def total(self) -> int:
        return sum(each.size for each in self.relations)

    def as_json(self) -> dict[str, Any]:
        return {
            "processes": round(self.process_count),
            "bytes": self.total,
            "bytes_per_process": round(self.total / self.process_count, 1),
            "payload_bytes_per_process": round(self.payload_per_process, 1),
            "bytes_per_process_of": {
                each.index or each.table: round(each.size / self.process_count, 1)
                for each in self.relations
            },
        }

    def as_table(self) -> Table:
        table = Table("relation", title=f"{self.process_count:,.0f} processes")
        for column in ("rows", "MiB", "bytes a process"):
            table.add_column(column, justify="right")
        for each in self.relations:
            rows = "" if each.index else f"{each.row_count:,.0f}"
            name = f"  {each.index}" if each.index else each.table
            table.add_row(name, rows, *self._columns(each.size))
        table.add_section()
        table.add_row("all", "", *self._columns(self.total))
        table.add_row("payload in it", "", "", f"{self.payload_per_process:,.1f}")
        return table

    def _columns(self, size: int) -> tuple[str, str]:
        return f"{size / 2**20:,.1f}", f"{size / self.process_count:,.1f}"


def read_sizes(connection: psycopg.Connection[Any]) -> Sizes:
    """Return the current sizes; rows are as of the last ANALYZE, payload is from a sample."""
    relations = tuple(
        Relation(table=table, index=index, size=size, row_count=max(0.0, rows))
        for table, index, size, rows in connection.execute(_RELATIONS).fetchall()
    )
    rows = {each.table: each.row_count for each in relations if not each.index}
    processes = max(1.0, rows["processes"])
    share = min(_WHOLE, _WHOLE * _SAMPLED / processes)
    found = connection.execute(_PAYLOADS, {"share": share}).fetchone()
    assert found is not None, "aggregates have a row"
    of_process, of_task, of_event = (float(each or 0) for each in found)
    payload = of_process + (of_task * rows["tasks"] + of_event * rows["events"]) / processes
    return Sizes(relations=relations, payload_per_process=payload)
