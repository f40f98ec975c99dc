"""Replicas and work: who serves, in which version, by which clock; what waits, and for what."""

import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence

from psycopg.rows import DictRow

from progressor.domain.processes.namespace import Namespace
from progressor.storage.doctor import findings
from progressor.storage.doctor.findings import OFFENDERS_MAX, Verdict, count_of, span_of
from progressor.storage.doctor.run import DoctorRun, checks
from progressor.storage.doctor.thresholds import (
    ATTEMPTS_SHARE,
    CLOCK_SKEW,
    COUNTED_MAX,
    LONG_PAUSE,
    LONG_STEP,
    OVERDUE,
    UNCOLLECTED,
)
from progressor.storage.postgres import statements

_SQL = statements.load("doctor/environment/work")
# What a namespace has that was written before there was the key.
_TOLD_SECONDS = 600.0
_DEFAULTS = Namespace(name="default", processor_targets=())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The replicas, by what can be hoped of them. Rows of `read_replicas`."""

    serving: Sequence[DictRow]
    draining: Sequence[DictRow]
    silent: Sequence[DictRow]

    @property
    def living(self) -> list[DictRow]:
        return [*self.serving, *self.draining]


def see_replicas(doctor_run: DoctorRun) -> Seen:
    """Read the replicas; each is judged by its own lease timeout if it reports one."""
    rows = doctor_run.rows(_SQL["read_replicas"])
    ours = doctor_run.replica.lease_timeout.total_seconds()
    living = [row for row in rows if row["silent_for"] <= (row["lease_timeout"] or ours)]
    return Seen(
        serving=[row for row in living if not row["draining"]],
        draining=[row for row in living if row["draining"]],
        silent=[row for row in rows if row not in living],
    )


def heartbeats_verdict(doctor_run: DoctorRun) -> Verdict:
    seen = see_replicas(doctor_run)
    silent = [f"{_name(row)}: silent for {span_of(row['silent_for'])}" for row in seen.silent]
    words = (
        f"{count_of(len(seen.serving), 'replica')} serving, {len(seen.draining)} draining, "
        f"{len(silent)} silent"
    )
    if not seen.serving:
        return _nobody_serves(doctor_run, words, silent)
    if silent:
        return findings.warning(
            words,
            advice=(
                "Check on their hosts why they ended or cannot reach PostgreSQL. Other replicas "
                "have taken over their steps; their rows are deleted after an hour."
            ),
            offenders=silent,
        )
    return findings.ok(words)


def versions_verdict(doctor_run: DoctorRun) -> Verdict:
    living = see_replicas(doctor_run).living
    builds = {(row["version"], row["functions"]) for row in living}
    if len(builds) > 1:
        return findings.warning(
            f"{count_of(len(living), 'replica')} of {len(builds)} different builds",
            advice="Finish the roll-out: two releases run side by side, but not for ever.",
            offenders=[
                f"{_name(row)}: {row['version']}, functions {row['functions']}" for row in living
            ],
        )
    if not builds:
        return findings.ok("no replica is known")
    [(version, _)] = builds
    return findings.ok(f"{count_of(len(living), 'replica')} of version {version}")


def clocks_verdict(doctor_run: DoctorRun) -> Verdict:
    living = see_replicas(doctor_run).living
    reported = [row for row in living if row["clock_offset"] is not None]
    if living and not reported:
        return findings.not_done(
            "no replica reports its clock",
            advice=(
                "Try again after two heartbeats if the replicas have just started; otherwise run "
                "`progressor migrate` and replicas of this release."
            ),
        )
    limit = CLOCK_SKEW.total_seconds()
    skewed = [row for row in reported if abs(row["clock_offset"]) > limit]
    if skewed:
        return findings.warning(
            f"{count_of(len(skewed), 'clock', one='differs', more='differ')} from PostgreSQL's by "
            f"more than {limit:g} s",
            advice="Set up NTP there: no step is lost, but times in logs and traces are wrong.",
            offenders=[
                f"{_name(row)}: {span_of(abs(row['clock_offset']))} "
                f"{'ahead' if row['clock_offset'] > 0 else 'behind'}"
                for row in skewed
            ],
        )
    if not reported:
        return findings.ok("no replica is known")
    furthest = max(abs(row["clock_offset"]) for row in reported)
    return findings.ok(
        f"{count_of(len(reported), 'clock')} within {span_of(furthest)} of PostgreSQL's"
    )


def due_verdict(doctor_run: DoctorRun) -> Verdict:
    serving = len(see_replicas(doctor_run).serving)
    backlog = _read_backlog(doctor_run)
    # What waits for a pause to end, or for a processor to come back, is of another check.
    excused = {row["namespace"] for row in backlog if row["is_paused"]} | {
        name for name, seconds in _see_processors(doctor_run).items() if None not in seconds
    }
    late = [
        row
        for row in backlog
        if row["namespace"] not in excused and (row["overdue_for"] or 0) > OVERDUE.total_seconds()
    ]
    if not late:
        due = sum(row["due_count"] for row in backlog)
        return findings.ok(f"{count_of(due, 'due task')}, none for more than {_whole(OVERDUE)}")
    named = [_late(row, serving) for row in late]
    words = (
        f"due tasks are not taken in {count_of(len(late), 'namespace')}, "
        f"the oldest for {span_of(late[0]['overdue_for'])}"
    )
    if not serving:
        return findings.failed(
            f"{words}: no replica is serving",
            advice="Start a replica: `progressor serve`.",
            offenders=named,
        )
    if all(_is_full(row, serving) for row in late):
        return findings.warning(
            f"{words}: all workers are busy",
            advice=(
                "See whether the processor is slow (`progressor trace`); else add replicas, or "
                "raise worker_count_max of the namespace."
            ),
            offenders=named,
        )
    return findings.failed(
        f"{words}: although there are free workers",
        advice=(
            "Look for `scan failed` and for slow statements in the logs of the replicas, and "
            "whether PostgreSQL is busy."
        ),
        offenders=named,
    )


def processors_verdict(doctor_run: DoctorRun) -> Verdict:
    seen = _see_processors(doctor_run)
    limit = OVERDUE.total_seconds()
    missed = {
        name: [it for it in seconds if it is not None]
        for name, seconds in seen.items()
        if any(it is not None and it > limit for it in seconds)
    }
    if not missed:
        return findings.ok("no processor has been out of reach for long")
    return findings.warning(
        f"the processors of {count_of(len(missed), 'namespace')} cannot be reached, "
        f"for {span_of(max(map(max, missed.values())))} at most",
        advice=(
            "See whether they run, at the targets of their namespaces (`progressor namespace get "
            "NAME`), and whether the hosts of these replicas reach them. Their tasks wait."
        ),
        offenders=[
            f"{name}: for {span_of(max(seconds))}, by {len(seconds)} of "
            f"{count_of(len(seen[name]), 'replica')}"
            for name, seconds in sorted(missed.items(), key=lambda it: -max(it[1]))
        ],
    )


def paused_verdict(doctor_run: DoctorRun) -> Verdict:
    rows = doctor_run.rows(_SQL["read_paused"])
    long = [row for row in rows if row["paused_for"] > LONG_PAUSE.total_seconds()]
    if not long:
        paused = f"{count_of(len(rows), 'namespace')} paused" if rows else "no namespace is paused"
        return findings.ok(f"{paused}, none for more than {_whole(LONG_PAUSE)}" if rows else paused)
    return findings.warning(
        f"{count_of(len(long), 'namespace')} paused for more than {_whole(LONG_PAUSE)}",
        advice="Once the pause is no longer needed: `progressor namespace resume NAME`.",
        offenders=[_pause(row) for row in long[:OFFENDERS_MAX]],
    )


def long_steps_verdict(doctor_run: DoctorRun) -> Verdict:
    rows = doctor_run.rows(_SQL["read_long_steps"], long_step=LONG_STEP, limit=OFFENDERS_MAX)
    if not rows:
        return findings.ok(f"nothing waits behind a step of more than {_whole(LONG_STEP)}")
    return findings.warning(
        f"{count_of(rows[0]['count'], 'process')} where requests wait behind a long step, "
        f"the oldest for {span_of(rows[0]['leased_for'])}",
        advice="See what the processor is doing; the namespace's step_timeout bounds a step.",
        offenders=[
            f"{_task(row)}: attempt {row['attempt']} for {span_of(row['leased_for'])} in replica "
            f"{row['replica_id']}, {row['behind_count']} behind it"
            for row in rows
        ],
    )


def lost_leases_verdict(doctor_run: DoctorRun) -> Verdict:
    rows = doctor_run.rows(
        _SQL["read_lost_leases"],
        lease_timeout=doctor_run.replica.lease_timeout,
        uncollected=UNCOLLECTED,
        limit=OFFENDERS_MAX,
    )
    if not rows:
        return findings.ok(f"none has been lost for more than {_whole(UNCOLLECTED)}")
    return findings.failed(
        f"{count_of(rows[0]['count'], 'lease')} lost and not collected, "
        f"the oldest for {span_of(rows[0]['lost_for'])}",
        advice=(
            "Replicas collect them each second: start one if none serves; else look for `scan "
            "failed` and `heartbeat missed` in their logs."
        ),
        offenders=[f"{_task(row)}: {row['cause']}, {span_of(row['lost_for'])}" for row in rows],
    )


def broken_verdict(doctor_run: DoctorRun) -> Verdict:
    rows = doctor_run.rows(_SQL["read_broken"], counted_max=COUNTED_MAX)
    if not rows:
        return findings.ok("no process is in error")
    job_count = sum(row["job_count"] for row in rows)
    jobs = "; of jobs and their nodes `progressor job retry -n NAMESPACE JOB`" if job_count else ""
    return findings.warning(
        f"{_counted(sum(row['count'] for row in rows), 'process')} in error",
        advice=(
            "`progressor failures` groups them by cause, `progressor trace -n NAMESPACE ID` shows "
            "how one broke; then `progressor bulk retry`, or `progressor retry` or `repair` of "
            f"one{jobs}."
        ),
        offenders=[_broken(row) for row in rows],
    )


def retries_verdict(doctor_run: DoctorRun) -> Verdict:
    rows = doctor_run.rows(
        _SQL["read_retries"],
        share=ATTEMPTS_SHARE,
        attempts_max=_DEFAULTS.retry_policy.attempts_max,
        limit=OFFENDERS_MAX,
    )
    if not rows:
        return findings.ok(f"no waiting task has used {ATTEMPTS_SHARE:.0%} of its attempts")
    return findings.warning(
        f"{count_of(rows[0]['count'], 'waiting task')} with {ATTEMPTS_SHARE:.0%} of the attempts "
        "used, or more",
        advice=(
            "`progressor trace` shows the errors of the processor. After its last attempt, a "
            "task breaks its process."
        ),
        offenders=[
            f"{_task(row)}: attempt {row['attempt']} of {row['attempts_max']} failed, "
            f"next {_when(row['due_in'])}"
            for row in rows
        ],
    )


def large_steps_verdict(doctor_run: DoctorRun) -> Verdict:
    rows = doctor_run.rows(_SQL["read_large_steps"], limit=OFFENDERS_MAX)
    ours = doctor_run.replica.lease_timeout.total_seconds()
    # Who has been silent for long says nothing of now.
    rows = [row for row in rows if row["silent_for"] <= _TOLD_SECONDS + ours]
    if not rows:
        return findings.ok("no step has reached half of its processor's limit")
    return findings.warning(
        f"in {count_of(len({row['namespace'] for row in rows}), 'namespace')}, a step has reached "
        "half of its processor's limit; a process breaks if its step exceeds the limit",
        advice=(
            "Raise the processor's limit on received messages and announce it "
            "(ProcessorService.Describe), or have the namespace send less history: last n, or none."
        ),
        offenders=[
            f"{row['namespace']}/{row['process_id']}: {row['size_bytes']:,} of "
            f"{row['limit_bytes']:,} bytes"
            for row in rows
        ],
    )


CHECKS = (
    *checks(
        "replicas",
        heartbeats=heartbeats_verdict,
        versions=versions_verdict,
        clocks=clocks_verdict,
    ),
    *checks(
        "work",
        due_tasks=due_verdict,
        processors=processors_verdict,
        pauses=paused_verdict,
        long_steps=long_steps_verdict,
        lost_leases=lost_leases_verdict,
        broken_processes=broken_verdict,
        retries=retries_verdict,
        large_steps=large_steps_verdict,
    ),
)


def _read_backlog(doctor_run: DoctorRun) -> list[DictRow]:
    return doctor_run.rows(
        _SQL["read_backlog"],
        counted_max=COUNTED_MAX,
        worker_count_max=_DEFAULTS.worker_count_max,
    )


def _see_processors(doctor_run: DoctorRun) -> Mapping[str, Sequence[float | None]]:
    """Return for each namespace for how long its processor is out of reach of each living replica.

    None: the replica reaches it.
    """
    living = {row["replica_id"] for row in see_replicas(doctor_run).living}
    found: dict[str, list[float | None]] = {}
    for row in doctor_run.rows(_SQL["read_processors"]):
        if row["replica_id"] in living:
            found.setdefault(row["namespace"], []).append(row["unreachable_for"])
    return found


def _nobody_serves(doctor_run: DoctorRun, words: str, silent: list[str]) -> Verdict:
    backlog = _read_backlog(doctor_run)
    due = sum(row["due_count"] for row in backlog)
    leased = sum(row["leased_count"] for row in backlog)
    if due or leased:
        return findings.failed(
            f"{words}, while {_counted(due, 'task')} due and {leased:,} leased",
            advice="Start a replica: `progressor serve`.",
            offenders=silent,
        )
    return findings.warning(
        f"{words}; nothing is due",
        advice="Start a replica if this database is in use: `progressor serve`.",
        offenders=silent,
    )


def _is_full(row: DictRow, serving: int) -> bool:
    return int(row["leased_count"]) >= int(row["worker_count_max"]) * serving


def _late(row: DictRow, serving: int) -> str:
    room = row["worker_count_max"] * serving
    return (
        f"{row['namespace']}: {_counted(row['due_count'], 'task')} due, the oldest for "
        f"{span_of(row['overdue_for'])}, {row['leased_count']:,} of {room:,} workers taken"
    )


def _pause(row: DictRow) -> str:
    by = f" by {row['author']}" if row["author"] else ""
    return f"{row['namespace']}: for {span_of(row['paused_for'])}{by}: {row['reason']}"


def _broken(row: DictRow) -> str:
    words = f"{row['namespace']}: {_counted(row['count'], 'process')}"
    jobs = row["job_count"]
    return f"{words}; jobs and nodes of jobs among them: {jobs:,}" if jobs else words


def _counted(count: int, what: str) -> str:
    return f"{count_of(count, what)}{' or more' if count >= COUNTED_MAX else ''}"


def _name(row: DictRow) -> str:
    return f"{row['name']} (replica {row['replica_id']})"


def _task(row: DictRow) -> str:
    return f"{row['namespace']}/{row['process_id']} {row['task_type']} {row['task_id']}"


def _when(due_in: float | None) -> str:
    if due_in is None:
        return "behind another task"
    return f"in {span_of(due_in)}" if due_in > 0 else "now"


def _whole(limit: dt.timedelta) -> str:
    return span_of(limit.total_seconds())
