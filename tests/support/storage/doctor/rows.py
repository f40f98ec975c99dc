"""Rows for the doctor to look at, as statements: replicas, leases, what waits, what is broken."""

AGO = "now() - interval '1 minute'"

REPLICA = (
    "INSERT INTO progressor.replicas"
    " (replica_id, name, version, functions, started_at, heartbeat_at, draining)"
    " VALUES ({id}, 'r{id}', '{version}', '', now(), {heartbeat}, {draining})"
)
SCHEDULED = (
    "INSERT INTO progressor.schedule"
    " (slot, namespace, process_id, task_id, task_type, status, due_at, attempt, replica_id)"
    " VALUES (1, 'orders', '{process}', {id}, 'call', 'waiting', {due}, {attempt}, 1)"
)
LEASED = (
    "INSERT INTO progressor.running (slot, namespace, process_id, task_id, task_type, attempt,"
    " token, replica_id, leased_at, expires_at)"
    " VALUES (1, 'orders', '{process}', 1, 'call', 1, 1, {replica}, {leased}, {expires})"
)
BROKEN = (
    "INSERT INTO progressor.processes (slot, namespace, process_id, status, detail, created_at,"
    " status_changed_at, init_task_id)"
    " SELECT 1, 'orders', 'b' || n, 'error', 'why', now(), now(), n"
    " FROM generate_series(1, {count}) n"
)


def replica(
    id_: int = 1, *, version: str = "1", heartbeat: str = "now()", draining: bool = False
) -> str:
    return REPLICA.format(id=id_, version=version, heartbeat=heartbeat, draining=draining)


def scheduled(process: str = "p", *, due: str = AGO, attempt: int = 0, id_: int = 2) -> str:
    return SCHEDULED.format(process=process, due=due, attempt=attempt, id=id_)


def leased(
    process: str = "p", *, leased: str = "now()", expires: str = "now() + '1 h'", by: int = 1
) -> str:
    return LEASED.format(process=process, leased=leased, expires=expires, replica=by)


def change(column: str, value: str) -> str:
    return f"UPDATE progressor.replicas SET {column} = {value}"  # noqa: S608  our words


def paused(duration: str) -> str:
    return (
        f"UPDATE progressor.namespaces SET paused_at = now() - interval '{duration}',"  # noqa: S608  our words
        " pause_reason = 'why', pause_author = 'ada'"
    )
