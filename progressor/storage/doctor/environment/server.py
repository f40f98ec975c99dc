"""The server: is it writable and durable, and what do its other sessions do?"""

from psycopg.rows import DictRow

from progressor.storage.doctor import findings
from progressor.storage.doctor.findings import Verdict, bytes_of, count_of, span_of
from progressor.storage.doctor.run import DoctorRun, checks
from progressor.storage.doctor.thresholds import (
    HELD_BACK,
    IDLE_IN_TRANSACTION,
    LONG_TRANSACTION,
    SLOT_WAL_BYTES,
    SNAPSHOT_AGE,
    SPARE_CONNECTIONS,
)
from progressor.storage.postgres import statements

_SQL = statements.load("doctor/environment/server")
_IDLE, _OPEN = IDLE_IN_TRANSACTION.total_seconds(), LONG_TRANSACTION.total_seconds()
_OLDEST = 150_000
_LOGGED = (
    "log_min_duration_statement",
    "log_min_duration_sample",
    "log_transaction_sample_rate",
    "log_statement",
    "auto_explain.log_min_duration",
)
_DURABLE = ("fsync", "full_page_writes", "synchronous_commit")


def server_verdict(doctor_run: DoctorRun) -> Verdict:
    row = doctor_run.row(_SQL["read_server"])
    words = f"PostgreSQL {row['version']}, up for {span_of(row['up_for'])}"
    if row["version_number"] < _OLDEST or row["encoding"] != "UTF8":
        return findings.failed(
            f"{words}, encoding {row['encoding']}",
            advice="Use PostgreSQL 15 or newer, and a database in UTF8.",
        )
    if row["is_standby"]:
        return findings.failed(
            f"{words}: a standby, in recovery; the engine cannot write",
            advice="Let database.dsn name the primary, or all hosts: the one that writes is found.",
        )
    if _settings(doctor_run).get("default_transaction_read_only") == "on":
        return findings.failed(
            f"{words}: transactions are read-only by default; the engine cannot write",
            advice=(
                "Set default_transaction_read_only to off again, in postgresql.conf or at the "
                "database or role."
            ),
        )
    return findings.ok(f"{words}, takes writes")


def durability_verdict(doctor_run: DoctorRun) -> Verdict:
    settings = _settings(doctor_run)
    off = [f"{name} is off" for name in _DURABLE if settings.get(name) == "off"]
    relaxed = doctor_run.rows(_SQL["read_relaxed_roles"])
    off += [f"synchronous_commit is off for {it['role']} in {it['database']}" for it in relaxed]
    if off:
        return findings.failed(
            "what was acknowledged may be lost in a crash",
            advice=(
                "Turn it on by ALTER SYSTEM SET, or RESET it at the role or database; then start "
                "the replicas anew."
            ),
            offenders=off,
        )
    waits = settings.get("synchronous_commit", "on")
    return findings.ok(f"fsync and full_page_writes are on, synchronous_commit is {waits}")


def lineage_verdict(doctor_run: DoctorRun) -> Verdict:
    row = doctor_run.row(_SQL["read_lineage"])
    if row["epoch"] == 1:
        return findings.ok("epoch 1: no standby has taken over, and no backup was restored")
    return findings.ok(
        f"epoch {row['epoch']}: a standby took over or a backup was restored, noticed at "
        f"{row['changed_at']} UTC"
    )


def statement_log_verdict(doctor_run: DoctorRun) -> Verdict:
    """Check whether the server's log shows the parameters of statements, payloads among them."""
    rows = doctor_run.rows(_SQL["read_log_settings"])
    settings = {row["name"]: row["setting"] for row in rows}
    logged = [name for name in _LOGGED if _logs(name, settings)]
    on_error = settings["log_parameter_max_length_on_error"] != "0"
    if settings["log_parameter_max_length"] == "0":
        logged = []
    if not logged and not on_error:
        return findings.ok("no parameters of statements are logged")
    named = [f"{name} is {settings[name]}" for name in logged]
    if on_error:
        value = settings["log_parameter_max_length_on_error"]
        named.append(f"log_parameter_max_length_on_error is {value}")
    return findings.warning(
        "PostgreSQL logs statements with their parameters, which include payloads",
        advice=(
            "Set log_parameter_max_length and log_parameter_max_length_on_error to 0, by ALTER "
            "SYSTEM SET or for the role of the engine; for auto_explain its own parameter."
        ),
        offenders=named,
    )


def roles_verdict(doctor_run: DoctorRun) -> Verdict:
    """Report the roles that the replicas run as; needless rights are not a fault."""
    rows = doctor_run.rows(_SQL["read_engine_roles"])
    return findings.ok("; ".join(_rights(row) for row in rows))


CHECKS = checks(
    "server",
    server=server_verdict,
    durability=durability_verdict,
    lineage=lineage_verdict,
    statement_log=statement_log_verdict,
    roles=roles_verdict,
)


def _settings(doctor_run: DoctorRun) -> dict[str, str]:
    """Return the settings that a replica has to live with."""
    rows = doctor_run.rows(_SQL["read_settings"])
    return {row["name"]: row["setting"] for row in rows if not row["is_own"]}


def transactions_verdict(doctor_run: DoctorRun) -> Verdict:
    rows = doctor_run.rows(
        _SQL["read_holders"],
        idle=IDLE_IN_TRANSACTION,
        open=LONG_TRANSACTION,
        snapshot_age=SNAPSHOT_AGE,
    )
    if not rows:
        return _nobody_seen(doctor_run)
    words = f"{count_of(len(rows), 'transaction')} open for long: vacuum takes no dead row away"
    advice = (
        "End them by SELECT pg_terminate_backend(pid); then fix who holds them, or set "
        "idle_in_transaction_session_timeout for that role."
    )
    offenders = [_holder(row) for row in rows]
    if max(row["open_for"] or 0 for row in rows) > HELD_BACK.total_seconds():
        return findings.failed(words, advice=advice, offenders=offenders)
    return findings.warning(words, advice=advice, offenders=offenders)


def prepared_verdict(doctor_run: DoctorRun) -> Verdict:
    rows = doctor_run.rows(_SQL["read_prepared"], open=LONG_TRANSACTION)
    if not rows:
        return findings.ok(f"none is older than {span_of(_OPEN)}")
    return findings.failed(
        f"{count_of(len(rows), 'prepared transaction')}, the oldest for "
        f"{span_of(rows[0]['open_for'])}: it keeps its locks over restarts, and holds vacuum back",
        advice="COMMIT PREPARED or ROLLBACK PREPARED each; the engine never makes one.",
        offenders=[f"{row['name']} of {row['role']}: {span_of(row['open_for'])}" for row in rows],
    )


def slots_verdict(doctor_run: DoctorRun) -> Verdict:
    slots = doctor_run.rows(_SQL["read_slots"])
    heavy = [
        row
        for row in slots
        if (row["snapshot_age"] or 0) > SNAPSHOT_AGE
        or (row["wal_bytes"] > SLOT_WAL_BYTES and row["wal_status"] != "lost")
    ]
    if not heavy:
        return findings.ok(f"{count_of(len(slots), 'slot')}, none of them far behind")
    return findings.warning(
        f"{count_of(len(heavy), 'replication slot')} far behind: WAL or dead rows pile up for it",
        advice="Bring its consumer back, or SELECT pg_drop_replication_slot(name).",
        offenders=[
            f"{row['name']} ({'active' if row['is_active'] else 'inactive'}): "
            f"{bytes_of(row['wal_bytes'])} of WAL, snapshot {row['snapshot_age'] or 0:,} "
            "transactions old"
            for row in heavy
        ],
    )


def connections_verdict(doctor_run: DoctorRun) -> Verdict:
    row = doctor_run.row(_SQL["count_connections"])
    free = row["allowed"] - row["used"]
    wanted = doctor_run.database.connections_max
    words = (
        f"{row['used']} of {row['allowed']} connections taken, {row['ours']} of them by progressor"
    )
    advice = (
        f"Raise max_connections: each replica may open {wanted} by this configuration; or put a "
        "pooler in between, or end who has too many."
    )
    if free < SPARE_CONNECTIONS:
        return findings.failed(words, advice=advice)
    if free < wanted:
        return findings.warning(f"{words}: too few left for another replica", advice=advice)
    return findings.ok(words)


def pooler_verdict(doctor_run: DoctorRun) -> Verdict:
    """Check whether the process that accepted the connection is the backend that answers."""
    backend = doctor_run.row(_SQL["read_backend"])["backend"]
    if backend == doctor_run.told_backend:
        return findings.ok("connected to PostgreSQL without a pooler")
    return findings.warning(
        "connections go through a pooler; in transaction mode LISTEN does not work through it, so "
        "a caller may learn one or two seconds late of an answer that another replica gave",
        advice=(
            "Nothing is lost. Send the requests for one process to one replica, or give the "
            "replicas a DSN past the pooler."
        ),
    )


SESSION_CHECKS = checks(
    "sessions",
    transactions=transactions_verdict,
    prepared_transactions=prepared_verdict,
    replication_slots=slots_verdict,
    connections=connections_verdict,
    pooler=pooler_verdict,
)


def _logs(name: str, settings: dict[str, str]) -> bool:
    value = settings.get(name)
    match name:
        case "log_statement":
            return value in {"mod", "all"}
        case "log_transaction_sample_rate":
            return float(value or 0) > 0
        case "auto_explain.log_min_duration":
            limit = settings.get("auto_explain.log_parameter_max_length", "-1")
            return value not in {None, "-1"} and limit != "0"
        case _:
            return value not in {None, "-1"}


def _rights(row: DictRow) -> str:
    if row["is_super"]:
        return f"{row['role']} is a superuser, which replicas do not need"
    if row["is_owner"]:
        return f"{row['role']} owns the schema, which only `progressor migrate` needs"
    return f"{row['role']} reads and writes rows, and must not change the schema"


def _nobody_seen(doctor_run: DoctorRun) -> Verdict:
    hidden = doctor_run.row(_SQL["count_hidden_sessions"])
    if hidden["count"]:
        return findings.not_done(
            f"role {hidden['role']} does not see the transactions of "
            f"{count_of(hidden['count'], 'session')} of other roles",
            advice=f"GRANT pg_read_all_stats TO {hidden['role']}.",
        )
    return findings.ok(
        f"none is idle in a transaction for {span_of(_IDLE)}, or open for {span_of(_OPEN)}"
    )


def _holder(row: DictRow) -> str:
    who = row["application_name"] or row["backend_type"] or "unknown"
    parts = [f"pid {row['pid']} ({who}, role {row['role'] or 'unknown'})"]
    if row["state"] is not None:
        parts.append(f"{row['state']} for {span_of(row['state_for'] or 0)}")
    if row["open_for"] is not None:
        parts.append(f"transaction open for {span_of(row['open_for'])}")
    if row["snapshot_age"] is not None:
        parts.append(f"snapshot {count_of(row['snapshot_age'], 'transaction')} old")
    return ", ".join(parts)
