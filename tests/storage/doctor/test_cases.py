"""The environment: what rows and settings of one database can make ill is made ill, and found."""

import dataclasses
import re

import pytest

from progressor.storage.doctor.environment import work as environment_work
from progressor.storage.doctor.findings import State
from progressor.storage.postgres.functions import Functions
from progressor.storage.postgres.migrations import migrations
from tests.support.postgres.cluster import Cluster
from tests.support.storage.doctor.doctor import execute, find
from tests.support.storage.doctor.rows import (
    AGO,
    BROKEN,
    change,
    leased,
    paused,
    replica,
    scheduled,
)
from tests.support.storage.store import NAMESPACE

HOUR_AGO, LONG_AGO = "now() - interval '1 h'", "now() - interval '10 min'"
IN_AN_HOUR, A_SECOND_AGO = "now() + interval '1 h'", "now() - interval '1 s'"
NEAR, OVER = ', ["p", 2097152, 4194304]', ', ["q", 5000000, 4194304]'
FUNCTIONS, LAST = Functions().schema, migrations()[-1]
ATTEMPTS_MAX = NAMESPACE.retry_policy.attempts_max
OLD_COLUMNS = ("clock_offset", "lease_timeout", "step_count", "caller_count")


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A check, the rows that it looks at, and the finding: patterns of its words and offenders."""

    name: str
    check: str
    rows: tuple[str, ...]
    state: State = State.OK
    words: str = ""
    offenders: tuple[str, ...] = ()
    advice: str = ""


def told(*steps: str) -> str:
    """Return a change that has a replica tell of the largest steps of namespaces."""
    loads = ", ".join(
        f'"n{number}": [0, 100, null, 1, 1, 0, 0.5{step}]' for number, step in enumerate(steps)
    )
    return change("facts", f"'{{{loads}}}'")


def unreached(seconds: str, others: str | None = None) -> str:
    """Return a change that has replicas tell for how long a processor is out of their reach."""
    first, rest = (f'{{"orders": [0, 100, {it}]}}' for it in (seconds, others or seconds))
    return change("facts", f"(CASE replica_id WHEN 1 THEN '{first}' ELSE '{rest}' END)::json")


def replies(count: int, deleted_count: int) -> tuple[str, ...]:
    """Return what leaves dead rows, and has them in the statistics."""
    return (
        "ALTER TABLE progressor.replies SET (autovacuum_enabled = false)",
        (
            "INSERT INTO progressor.replies"  # noqa: S608  # our own values
            " (slot, namespace, process_id, task_id, task_type, status, created_at)"
            f" SELECT 1, 'orders', 'p', n, 'call', 'finished', now()"
            f" FROM generate_series(1, {count}) n"
        ),
        f"DELETE FROM progressor.replies WHERE task_id <= {deleted_count}",  # noqa: S608  # our own values
        "SELECT pg_stat_force_next_flush()",
    )


def alter_database(setting: str) -> str:
    return (
        f"DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET {setting}', current_database()); END $$"
    )


CASES = [
    Case(
        "one is missing", "migrations",
        (f"DELETE FROM progressor.migrations WHERE number = {LAST.number}",),  # noqa: S608  # our own values
        State.FAILED, offenders=(f"{LAST.name}$",), advice="progressor migrate",
    ),
    Case(
        "another text", "migrations",
        ("UPDATE progressor.migrations SET checksum = '' WHERE number = 1",),
        State.FAILED, ".*another text", ("0001_pre_initial$",),
    ),
    *(
        Case(
            f"a later release has {name}", "migrations",
            (f"INSERT INTO progressor.migrations VALUES (99, '{name}', '')",),  # noqa: S608  # our own values
            state, offenders=(f"{name}$",),
        )
        for name, state in {
            "0099_pre_add": State.WARNING, "0099_post_drop": State.FAILED,
        }.items()
    ),
    Case(
        "are not deployed", "functions", (f"DROP SCHEMA {FUNCTIONS} CASCADE",), State.FAILED,
        ".*not deployed",
    ),
    Case(
        "one is missing", "functions", (f"DROP FUNCTION {FUNCTIONS}.delete_finished",),
        State.FAILED, ".*is not what this release deploys: missing: delete_finished$",
    ),
    Case(
        "one was added", "functions",
        (f"CREATE FUNCTION {FUNCTIONS}.strange() RETURNS integer LANGUAGE sql AS 'SELECT 1'",),
        State.FAILED, ".*: added: strange$",
    ),
    Case(
        "one runs with the rights of its owner", "functions",
        (f"ALTER FUNCTION {FUNCTIONS}.delete_finished SECURITY DEFINER",),
        State.FAILED, ".*: changed: delete_finished$",
    ),
    Case(
        "one looks elsewhere for its tables", "functions",
        (f"ALTER FUNCTION {FUNCTIONS}.delete_finished SET search_path = public, progressor",),
        State.FAILED, ".*: changed: delete_finished$",
    ),
    Case(
        "a table hides that of the engine", "functions",
        (f"CREATE VIEW {FUNCTIONS}.processes AS SELECT 1",),
        State.FAILED, ".*relations, which this release does not create: processes$",
    ),
    Case(
        "payloads are logged", "statement_log",
        (alter_database("log_min_duration_statement = 100"),),
        State.WARNING, offenders=("log_min_duration_statement is 100$",),
    ),
    Case(
        "payloads are logged with errors", "statement_log",
        (alter_database("log_parameter_max_length_on_error = 64"),),
        State.WARNING, offenders=("log_parameter_max_length_on_error is 64$",),
    ),
    Case(
        "slow statements are logged without parameters", "statement_log",
        (
            alter_database("log_min_duration_statement = 100"),
            alter_database("log_parameter_max_length = 0"),
        ),
    ),
    Case("a superuser", "roles", (), words="postgres is a superuser"),
    Case(
        "one is missing", "indexes", ("DROP INDEX progressor.schedule_due",), State.FAILED,
        "1 index missing, 0 invalid", ("schedule_due is missing$",),
    ),
    Case(
        "off for a table", "autovacuum",
        ("ALTER TABLE progressor.running SET (autovacuum_enabled = false)",),
        State.FAILED, offenders=("running$",),
    ),
    Case(
        "that stay", "dead_rows", replies(20_000, 15_000), State.WARNING,
        offenders=("replies: 15,000 dead of 5,000 live rows, never vacuumed$",),
    ),
    Case("that are few", "dead_rows", replies(9_000, 9_000), words="9,000 dead rows"),
    Case("of all tables", "sizes", (), words=".* in all: "),
    Case("none in between", "pooler", ()),
    Case(
        "a database that does not wait for the disk", "durability",
        (alter_database("synchronous_commit = off"),), State.FAILED, "",
        ("synchronous_commit is off$", "synchronous_commit is off for every role in "),
    ),
    Case(
        "a database that is read-only", "server",
        (alter_database("default_transaction_read_only = on"),), State.FAILED,
        ".*read-only by default",
    ),
    Case("without reported facts", "large_steps", (replica(), told("", ""))),
    Case(
        "that come near what their processor receives",
        "large_steps", (replica(), told(NEAR, "", OVER)), State.WARNING,
        "in 2 namespaces, a step has reached half of",
        ("n2/q: 5,000,000 of 4,194,304 bytes$", "n0/p: 2,097,152 of 4,194,304 bytes$"),
        "ProcessorService.Describe",
    ),
    Case("of a replica that has told nothing", "large_steps", (replica(),)),
    Case("of a replica long gone", "large_steps", (replica(heartbeat=HOUR_AGO), told(NEAR))),
    Case("reached", "processors", (replica(), unreached("null"))),
    Case("out of reach just now", "processors", (replica(), unreached("5"))),
    Case(
        "out of reach of one long gone",
        "processors", (replica(heartbeat=HOUR_AGO), unreached("600")),
    ),
    Case(
        "out of reach of one of two",
        "processors", (replica(1), replica(2), unreached("600", "null")), State.WARNING,
        "the processors of 1 namespace cannot be reached, for 10 min at most$",
        ("orders: for 10 min, by 1 of 2 replicas$",),
        "progressor namespace get",
    ),
    Case(
        "out of reach of all, with tasks that are due",
        "processors", (replica(1), replica(2), unreached("600"), scheduled()), State.WARNING,
        offenders=("orders: for 10 min, by 2 of 2 replicas$",),
    ),
    Case(
        "one that serves", "heartbeats", (replica(), scheduled()),
        words="1 replica serving, 0 draining, 0 silent$",
    ),
    Case(
        "one that is silent among others",
        "heartbeats", (replica(1), replica(2, heartbeat=AGO), replica(3, draining=True)),
        State.WARNING, "1 replica serving, 1 draining, 1 silent$",
        (r"r2 \(replica 2\): silent for 60",),
    ),
    Case(
        "judged by its own lease timeout",
        "heartbeats", (replica(heartbeat=AGO), change("lease_timeout", "'10 min'")),
    ),
    Case(
        "no replica serves what is due", "heartbeats", (replica(1, draining=True), scheduled()),
        State.FAILED, advice="progressor serve",
    ),
    Case(
        "no replica serves what is leased", "heartbeats", (replica(1, draining=True), leased()),
        State.FAILED, advice="progressor serve",
    ),
    Case(
        "no replica serves and nothing is due",
        "heartbeats", (scheduled(due=IN_AN_HOUR),), State.WARNING,
    ),
    Case(
        "two releases side by side",
        "versions", (replica(1), replica(2, version="2"), replica(3, heartbeat=AGO, version="3")),
        State.WARNING, "2 replicas of 2 different builds$", ("r1 ", "r2 "),
    ),
    Case(
        "a clock that is off",
        "clocks",
        (
            replica(1), replica(2),
            change("clock_offset", "CASE replica_id WHEN 1 THEN -3.5 ELSE 0.9 END"),
        ),
        State.WARNING, offenders=(r"r1 \(replica 1\): 3.5 s behind$",),
    ),
    Case(
        "within a second", "clocks", (replica(), change("clock_offset", "0.25")),
        words="1 clock within 250 ms of PostgreSQL's$",
    ),
    Case(
        "due and no replica serves", "due_tasks", (scheduled("p1"), scheduled("p2")), State.FAILED,
        ".*no replica is serving",
        ("orders: 2 tasks due, the oldest for 60.* 0 of 0 workers taken$",),
    ),
    Case(
        "due and all workers are taken",
        "due_tasks",
        (
            "UPDATE progressor.namespaces SET config = config || '{\"worker_count_max\": 1}'",
            replica(), leased("busy"), scheduled(),
        ),
        State.WARNING, ".*all workers are busy", (".* 1 of 1 workers taken",),
    ),
    Case(
        "due although there is room", "due_tasks", (replica(), leased("busy"), scheduled()),
        State.FAILED, ".*although there are free workers", ("orders: ",),
    ),
    *(
        Case(f"due {due}", "due_tasks", (replica(), scheduled(due=due)))
        for due in (A_SECOND_AGO, IN_AN_HOUR, "NULL")
    ),
    Case(
        "due although one of two reaches its processor",
        "due_tasks", (replica(1), replica(2), unreached("600", "null"), scheduled()),
        State.FAILED, ".*although there are free workers", ("orders: ",),
    ),
    Case(
        "due, and its processor is out of reach",
        "due_tasks", (replica(), unreached("600"), scheduled()),
    ),
    Case("due in a paused namespace", "due_tasks", (replica(), scheduled(), paused("1 day"))),
    Case(
        "for more than a day", "pauses", (paused("26 hours"),), State.WARNING,
        "1 namespace paused for more than 24 h", ("orders: for 26 h by ada: why$",),
    ),
    Case("for hours", "pauses", (paused("3 hours"),), words="1 namespace paused, none for"),
    Case("none", "pauses", (), words="no namespace is paused"),
    Case(
        "with something behind it",
        "long_steps",
        (
            leased("slow", leased=LONG_AGO), scheduled("slow", due="NULL"),
            leased("alone", leased=LONG_AGO),
            leased("quick"), scheduled("quick", due="NULL"),
        ),
        State.WARNING, "1 process where requests wait behind a long step, the oldest for 10 min$",
        ("orders/slow call 1: attempt 1 for 10 min in replica 1, 1 behind it$",),
    ),
    *(
        Case(cause, "lost_leases", rows, State.FAILED, offenders=(f".*{cause}",))
        for cause, rows in {
            "its replica is gone": (leased(leased=AGO, by=7),),
            "its step overran": (replica(), leased(expires=AGO)),
            "its replica is silent": (replica(heartbeat=HOUR_AGO), leased()),
        }.items()
    ),
    Case("its replica is gone just now", "lost_leases", (leased(by=7),)),
    Case("it overran just now", "lost_leases", (replica(), leased(expires=A_SECOND_AGO))),
    Case(
        "its replica is silent for a while",
        "lost_leases", (replica(heartbeat="now() - interval '20 s'"), leased()),
    ),
    Case("it holds for long", "lost_leases", (replica(), leased(leased=HOUR_AGO))),
    Case(
        "counted", "broken_processes", (BROKEN.format(count=12),), State.WARNING,
        "12 processes in error$", ("orders: 12 processes$",),
    ),
    Case(
        "jobs and nodes are for job retry",
        "broken_processes",
        (
            BROKEN.format(count=6),
            "UPDATE progressor.processes SET led_by = 'engine' WHERE process_id LIKE '%1'",
            (
                "UPDATE progressor.processes SET leader_slot = 1, leader_namespace = 'orders',"
                " leader_id = 'job', node = 1 WHERE process_id LIKE '%2' OR process_id LIKE '%3'"
            ),
        ),
        State.WARNING, "",
        ("orders: 6 processes; jobs and nodes of jobs among them: 3$",),
        "`progressor job retry -n NAMESPACE JOB`",
    ),
    Case(
        "those without jobs are for repair", "broken_processes", (BROKEN.format(count=1),),
        State.WARNING, "", ("orders: 1 process$",),
        "`progressor failures` .* `progressor bulk retry`, .* of one.$",
    ),
    Case(
        "far in the attempts",
        "retries",
        (
            scheduled("near", attempt=ATTEMPTS_MAX - 1, due="now() + interval '90 s'"),
            scheduled("early", attempt=1),
        ),
        State.WARNING, "",
        ("orders/near call 2: attempt 2 of 3 failed, next in ",),
    ),
    Case(
        "by the policy of the type",
        "retries",
        (
            ("UPDATE progressor.namespaces"
            ' SET config = config || \'{"retry_policies": {"call": {"attempts_max": 100}}}\''),
            scheduled(attempt=3),
        ),
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def cluster(durable_cluster: Cluster) -> Cluster:
    return durable_cluster


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.check}: {case.name}")
def test_what_goes_wrong_is_found(orders: str, case: Case) -> None:
    execute(orders, *case.rows)

    found = find(orders, case.check)

    assert found.state is case.state
    assert re.match(case.words, found.words), found.words
    assert re.search(case.advice, found.advice), found.advice
    assert len(found.offenders) == len(case.offenders)
    for pattern, offender in zip(case.offenders, found.offenders, strict=True):
        assert re.match(pattern, offender), offender


def test_a_schema_without_the_clocks_of_replicas_is_not_checked_for_them(orders: str) -> None:
    execute(
        orders,
        replica(),
        *(f"ALTER TABLE progressor.replicas DROP COLUMN {column}" for column in OLD_COLUMNS),
    )

    found = {name: find(orders, name).state for name in ("clocks", "heartbeats", "lost_leases")}

    assert found == {"clocks": State.NOT_DONE, "heartbeats": State.OK, "lost_leases": State.OK}


def test_counting_ends_somewhere(orders: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_work, "COUNTED_MAX", 5)
    execute(orders, BROKEN.format(count=12))

    assert find(orders, "broken_processes").words == "5 processes or more in error"
