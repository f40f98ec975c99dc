"""The environment of an engine: all checks besides the invariants, in the order of reading.

Each subject is a file: the server and its sessions, our schema in it, replicas and their work; here
is the configuration. ``thresholds`` says from when on something is worth a warning.
"""

import platform
import sysconfig

from progressor.settings.namespaces import differing_keys
from progressor.storage.doctor import findings
from progressor.storage.doctor.environment import schema, server, work
from progressor.storage.doctor.findings import Verdict, count_of
from progressor.storage.doctor.run import DoctorRun, checks
from progressor.storage.namespaces.namespaces import namespace_of
from progressor.storage.postgres import statements

_SQL = statements.load("namespaces/namespaces")


def namespaces_verdict(doctor_run: DoctorRun) -> Verdict:
    configured = doctor_run.namespaces
    if not configured:
        return findings.ok("the configuration has no namespaces")
    rows = doctor_run.rows(
        _SQL["read_namespaces"], names=[it.name for it in configured], after="", limit=None
    )
    stored = {row["name"]: namespace_of(**row) for row in rows}
    named = []
    for namespace in configured:
        if namespace.name not in stored:
            named.append(f"{namespace.name}: missing")
        elif keys := differing_keys(namespace, stored[namespace.name]):
            named.append(f"{namespace.name}: {', '.join(keys)}")
    if not named:
        return findings.ok(f"{count_of(len(configured), 'namespace')} as configured")
    return findings.warning(
        f"{len(named)} of {count_of(len(configured), 'configured namespace')} not as in the "
        "database",
        advice=(
            "The database takes precedence: an engine that starts creates missing namespaces and "
            "changes nothing else. Run `progressor namespace apply` with the file, or correct the "
            "file."
        ),
        offenders=named,
    )


def python_verdict(_: DoctorRun) -> Verdict:
    """Report the Python that runs the doctor: the replica's own, where a replica was asked."""
    return findings.ok(python_words(sysconfig.get_config_var("CONFIG_ARGS")))


def python_words(config_args: str | None) -> str:
    """Return how Python was built; ``config_args``: None where that is not known."""
    words = f"{platform.python_implementation()} {platform.python_version()}"
    if config_args is None:
        return words
    if "--enable-optimizations" in config_args:
        return f"{words}, an optimized build"
    return f"{words}, built without --enable-optimizations: one with it needs 10 to 20 % less CPU"


CHECKS = (
    *server.CHECKS,
    *schema.CHECKS,
    *checks("configuration", namespaces=namespaces_verdict, python=python_verdict),
    *work.CHECKS,
    *server.SESSION_CHECKS,
)
