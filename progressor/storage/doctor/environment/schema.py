"""The schema in the database: is it that of this release, complete, and in good condition?"""

import re

from psycopg.rows import DictRow

from progressor.storage.doctor import findings
from progressor.storage.doctor.environment.partitions import partitions_verdict
from progressor.storage.doctor.findings import Verdict, bytes_of, count_of, span_of
from progressor.storage.doctor.run import DoctorRun, checks
from progressor.storage.doctor.thresholds import (
    DEAD_ROWS,
    DEAD_SHARE,
    TRANSACTION_ID_AGE,
    TRANSACTION_ID_AGE_LAST,
)
from progressor.storage.postgres import migrations, statements
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.schema import deployment

_INDEX = re.compile(
    r"^CREATE (?:UNIQUE )?INDEX (\w+)|CONSTRAINT (\w+) (?:PRIMARY KEY|UNIQUE)", re.MULTILINE
)
_SQL = statements.load("doctor/environment/schema")
_MIGRATE = "Run `progressor migrate` of this release."


def migrations_verdict(doctor_run: DoctorRun) -> Verdict:
    if not doctor_run.row(_SQL["schema_exists"])["exists"]:
        return findings.failed("this database has no schema progressor", advice=_MIGRATE)
    applied = {row["number"]: row for row in doctor_run.rows(_SQL["read_migrations"])}
    ours = {each.number: each for each in migrations.migrations()}
    changed = [
        each.name
        for number, each in ours.items()
        if number in applied and applied[number]["checksum"] != each.checksum
    ]
    absent = [each for number, each in ours.items() if number not in applied]
    missing = [each.name for each in absent if not each.is_post]
    waiting = [each.name for each in absent if each.is_post]
    ahead = [str(row["name"]) for number, row in applied.items() if number not in ours]
    if changed:
        return findings.failed(
            f"{count_of(len(changed), 'migration')} applied with another text than this release's",
            advice="Use the release that made this database: this one refuses to start on it.",
            offenders=changed,
        )
    if missing:
        return findings.failed(
            f"{len(missing)} of {count_of(len(ours), 'migration')} not applied",
            advice=f"{_MIGRATE} A replica does the same when it starts.",
            offenders=missing,
        )
    if waiting:
        return findings.warning(
            f"{count_of(len(waiting), 'post migration')} not applied yet",
            advice="Replace the replicas of older releases, then run `progressor migrate`.",
            offenders=waiting,
        )
    return _ahead_verdict(ahead) if ahead else findings.ok(f"all {len(ours)} are applied")


def functions_verdict(doctor_run: DoctorRun) -> Verdict:
    functions = Functions()
    if not deployment.is_deployed(functions, doctor_run.rows):
        return findings.failed(
            f"the functions of this release ({functions.schema}) are not deployed", advice=_MIGRATE
        )
    if fault := deployment.fault_of(functions, doctor_run.rows):
        return findings.failed(
            f"{functions.schema} is not what this release deploys: {fault}",
            advice=(
                f"Find out who changed it. Stop the replicas of this release, DROP SCHEMA "
                f"{functions.schema} CASCADE, and run `progressor migrate`: functions are deployed "
                "only where their schema is absent."
            ),
        )
    return findings.ok(f"{functions.schema} is deployed, and is what this release deploys")


def index_names() -> list[str]:
    """Return every index of the schema, as the migrations of this release come to it."""
    schema = (statements.priv() / "migrations" / "schema.sql").read_text("utf-8")
    return sorted(index or key for index, key in _INDEX.findall(schema))


def indexes_verdict(doctor_run: DoctorRun) -> Verdict:
    there = {row["name"]: row for row in doctor_run.rows(_SQL["read_indexes"])}
    names = index_names()
    missing = [f"{name} is missing" for name in names if name not in there]
    invalid = [
        f"{name} on {row['on_table']} is invalid"
        for name, row in there.items()
        if not row["is_valid"]
    ]
    if missing or invalid:
        return findings.failed(
            f"{count_of(len(missing), 'index')} missing, {len(invalid)} invalid: statements read "
            "whole tables, and a unique one no longer refuses what it should",
            advice=(
                "Create a missing one as in priv/migrations/schema.sql, with CREATE INDEX "
                "CONCURRENTLY; for an invalid one REINDEX INDEX CONCURRENTLY, or DROP INDEX where "
                "its name is not in that file."
            ),
            offenders=missing + invalid,
        )
    return findings.ok(f"all {len(names)} exist and are valid")


def collations_verdict(doctor_run: DoctorRun) -> Verdict:
    indexes = doctor_run.rows(_SQL["read_collations"])
    stale = [
        f"{row['name']} on {row['on_table']}: {row['collation']} was version {row['noted']}, "
        f"is {row['current']}"
        for row in indexes
        if row["noted"] != row["current"]
    ]
    if stale:
        return findings.warning(
            f"{count_of(len(stale), 'index', one='is', more='are')} in the order of another "
            "version of a collation: rows may not be found, and duplicates not be refused",
            advice=(
                "REINDEX INDEX CONCURRENTLY progressor.… for each; then ALTER COLLATION … REFRESH "
                "VERSION, or ALTER DATABASE … REFRESH COLLATION VERSION where it is the default."
            ),
            offenders=stale,
        )
    database = doctor_run.row(_SQL["read_database_collation"])
    if database["noted"] != database["current"]:
        return findings.warning(
            f"the collation of the database was version {database['noted']} when it was created, "
            f"and is {database['current']}; no index of the engine depends on it",
            advice=(
                "REINDEX the indexes on text of other applications in this database; then ALTER "
                f'DATABASE "{database["name"]}" REFRESH COLLATION VERSION.'
            ),
        )
    if indexes:
        return findings.ok(
            f"{count_of(len(indexes), 'index', one='depends', more='depend')} on a collation with "
            "a version, which has not changed"
        )
    return findings.ok("no index depends on the version of a collation")


def autovacuum_verdict(doctor_run: DoctorRun) -> Verdict:
    settings = doctor_run.row(_SQL["read_autovacuum"])
    off = [f"{name} is off" for name, value in settings.items() if value != "on"]
    if off:
        return findings.failed(
            "dead rows are not removed: autovacuum does not run",
            advice="ALTER SYSTEM SET autovacuum = on, and track_counts; SELECT pg_reload_conf().",
            offenders=off,
        )
    tables = doctor_run.rows(_SQL["read_tables"])
    excluded = [str(row["name"]) for row in tables if row["is_vacuum_off"]]
    if excluded:
        return findings.failed(
            f"autovacuum is off for {count_of(len(excluded), 'table')}",
            advice="ALTER TABLE progressor.… RESET (autovacuum_enabled).",
            offenders=excluded,
        )
    return findings.ok("autovacuum is on for every table")


def dead_rows_verdict(doctor_run: DoctorRun) -> Verdict:
    tables = doctor_run.rows(_SQL["read_tables"])
    bloated = [_dead(row) for row in tables if _is_bloated(row)]
    if bloated:
        return findings.warning(
            f"{count_of(len(bloated), 'table')} with more than {DEAD_SHARE:.0%} and "
            f"{DEAD_ROWS:,} dead rows",
            advice=(
                "See who holds vacuum back (the group sessions); else VACUUM the table, and give "
                "autovacuum a higher autovacuum_vacuum_cost_limit."
            ),
            offenders=bloated,
        )
    dead = sum(row["dead_count"] for row in tables)
    return findings.ok(f"{count_of(dead, 'dead row')} in {count_of(len(tables), 'table')}")


def sizes_verdict(doctor_run: DoctorRun) -> Verdict:
    tables = doctor_run.rows(_SQL["read_tables"])
    largest = ", ".join(f"{row['name']} {bytes_of(row['bytes'])}" for row in tables[:4])
    return findings.ok(f"{bytes_of(sum(row['bytes'] for row in tables))} in all: {largest}")


def transaction_ids_verdict(doctor_run: DoctorRun) -> Verdict:
    ages = doctor_run.row(_SQL["read_transaction_ages"])
    oldest = max(ages["transaction_age"], ages["multixact_age"])
    words = f"the oldest unfrozen transaction id is {oldest / 1e6:,.0f} M transactions old"
    advice = (
        "End what holds vacuum back (the group sessions) and VACUUM (FREEZE) the oldest tables; at "
        "2,000 M PostgreSQL refuses to write."
    )
    if oldest > TRANSACTION_ID_AGE_LAST:
        return findings.failed(words, advice=advice)
    if oldest > TRANSACTION_ID_AGE:
        return findings.warning(words, advice=advice)
    return findings.ok(words)


CHECKS = (
    *checks(
        "schema",
        migrations=migrations_verdict,
        functions=functions_verdict,
        indexes=indexes_verdict,
        collations=collations_verdict,
        partitions=partitions_verdict,
    ),
    *checks(
        "tables",
        autovacuum=autovacuum_verdict,
        dead_rows=dead_rows_verdict,
        sizes=sizes_verdict,
        transaction_ids=transaction_ids_verdict,
    ),
)


def _ahead_verdict(ahead: list[str]) -> Verdict:
    words = f"all of this release are applied, and {count_of(len(ahead), 'later one')}"
    if any("_post_" in name for name in ahead):
        return findings.failed(
            words,
            advice="Use a newer release: after a later post step this one refuses to start.",
            offenders=ahead,
        )
    return findings.warning(
        words,
        advice="A newer release is being rolled out: finish that, and use its `progressor doctor`.",
        offenders=ahead,
    )


def _is_bloated(row: DictRow) -> bool:
    share_of_live = DEAD_SHARE * int(row["live_count"])
    return int(row["dead_count"]) > max(share_of_live, DEAD_ROWS)


def _dead(row: DictRow) -> str:
    vacuumed = row["vacuumed_ago"]
    when = "never vacuumed" if vacuumed is None else f"vacuumed {span_of(vacuumed)} ago"
    return f"{row['name']}: {row['dead_count']:,} dead of {row['live_count']:,} live rows, {when}"
