"""Fills a database: python -m bench.filling (--dsn DSN | --data-directory DIR) --processes N ..."""

import argparse
import contextlib
import dataclasses
import datetime as dt
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
from rich.console import Console

from bench.filling.load import fill
from bench.filling.plan import Plan, default_timer_count
from bench.filling.sizes import read_sizes
from bench.machine import commit, machine
from progressor.storage.embedded.server import EmbeddedPostgres

_TABLE_WIDTH = 100

LOADING = {
    # At this level, a table that is filled in the transaction that emptied it needs no WAL.
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "8GB",
    "shared_buffers": "1GB",
    # Each load runs ANALYZE itself.
    "autovacuum": "off",
}
"""Settings of an embedded server during a load; durability is unchanged."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.filling", description=__doc__)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--dsn", help="connection string of the database")
    where.add_argument(
        "--data-directory", type=Path,
        help="an embedded PostgreSQL's directory, as in database.data_directory; made if absent",
    )  # fmt: skip
    parser.add_argument("--processes", type=int, default=1_000_000, metavar="N")
    parser.add_argument(
        "--timers", type=int, metavar="N", help="timers in some weeks; a tenth of the processes"
    )
    parser.add_argument("--due", type=int, default=0, metavar="N", help="timers that are due")
    parser.add_argument(
        "--due-after", type=float, default=0.0, metavar="SECONDS", help="seconds until they are due"
    )
    parser.add_argument(
        "--events-of-one", type=int, default=0, metavar="N", help="events of an additional process"
    )
    parser.add_argument("--namespace", default="filled")
    parser.add_argument(
        "--prefix", default="filled", help="prefix of the process ids, PREFIX-NUMBER"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--processor", default="127.0.0.1:1", help="processor of the namespace, if it is created"
    )
    return parser.parse_args()


def _plan_of(arguments: argparse.Namespace) -> Plan:
    timers = arguments.timers
    return Plan(
        process_count=arguments.processes,
        timer_count=default_timer_count(arguments.processes) if timers is None else timers,
        due_count=arguments.due,
        due_after=dt.timedelta(seconds=arguments.due_after),
        long_event_count=arguments.events_of_one,
        namespace=arguments.namespace,
        prefix=arguments.prefix,
        seed=arguments.seed,
    )


@contextlib.contextmanager
def _database(arguments: argparse.Namespace) -> Iterator[str]:
    if arguments.dsn:
        yield arguments.dsn
        return
    embedded = EmbeddedPostgres(data_directory=arguments.data_directory, settings=LOADING)
    with embedded:
        yield embedded.conninfo


def main() -> None:
    """Fill a database, and print the duration and the sizes: a table, and a line of JSON."""
    arguments = _arguments()
    plan, people = _plan_of(arguments), Console(stderr=True, width=_TABLE_WIDTH)
    with _database(arguments) as conninfo:
        loaded = fill(conninfo, plan, processor=arguments.processor)
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute("CHECKPOINT")
            sizes = read_sizes(connection)
    people.print(sizes.as_table())
    people.print(
        f"{loaded.rows:,} rows in {loaded.seconds:.0f} s, {loaded.rows_per_s:,.0f} a second"
    )
    line = {
        "name": "filling",
        **dataclasses.asdict(loaded),
        "rows_per_s": round(loaded.rows_per_s),
        "namespace": plan.namespace,
        "prefix": plan.prefix,
        **sizes.as_json(),
        "commit": commit(),
        "machine": machine(),
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    }
    sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
