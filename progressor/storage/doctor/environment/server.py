"""The server itself: can it be written to, and does it keep what it has acknowledged?"""

from progressor.storage.doctor import findings
from progressor.storage.doctor.findings import Verdict, span_of
from progressor.storage.doctor.run import DoctorRun, checks
from progressor.storage.postgres import statements

_SQL = statements.load("doctor/environment/sessions")
_OLDEST = 150_000
_DURABLE = ("fsync", "full_page_writes", "synchronous_commit")


def server_verdict(doctor_run: DoctorRun) -> Verdict:
    """Look whether it is a server that the engine can work with."""
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
    """Look whether what was acknowledged survives a crash."""
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


CHECKS = checks(
    "server",
    server=server_verdict,
    durability=durability_verdict,
)


def _settings(doctor_run: DoctorRun) -> dict[str, str]:
    """Return the settings that a replica has to live with."""
    rows = doctor_run.rows(_SQL["read_settings"])
    return {row["name"]: row["setting"] for row in rows if not row["is_own"]}
