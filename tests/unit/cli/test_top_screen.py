"""What top shows: every number, as much as fits, and how much does not."""

import datetime as dt
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.screen import Screen as FullScreen

from progressor.cli.top.screen import SLOWEST_MAX, Away, Screen, age_text
from progressor.domain.views.activity import NamespaceQueue
from progressor.sdk.client.overview import Overview, overview_of
from progressor.sdk.client.replicas import Rates, StepRate
from tests.support.builders import seconds
from tests.support.clock import START
from tests.support.engine.activities import a_namespace, a_queue, a_replica, an_activity

RATE = StepRate(
    settled_per_second=1234.5,
    attempts_per_second=2.0,
    failed_per_second=0.25,
    processor_seconds_per_second=0.5,
)
WIDE = 200


def shown(
    overview: Overview, *, width: int = WIDE, height: int | None = None, away: Away | None = None
) -> list[str]:
    """Return the lines of a screen, or of all there is where no height is given."""
    is_cut = height is not None
    screen = Screen(overview=overview, address="127.0.0.1:7420", away=away, is_cut=is_cut)
    console = Console(file=io.StringIO(), width=width, height=height or 25, highlight=False)
    console.print(FullScreen(screen) if is_cut else screen)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def crowd(namespaces: int, replicas: int = 2, *, lines: int = 0) -> Overview:
    """Return an overview of so many namespaces and replicas at work, each with so long a line."""
    names = [f"namespace-{number:03}" for number in range(namespaces)]
    crews = [a_namespace(name, busy=3, workers=1000) for name in names]
    return overview_of(
        an_activity(
            *(a_replica(number, *crews) for number in range(replicas)),
            queues=tuple(
                a_queue(name, due=1, oldest=1.0, gate_count=lines, held_count=lines)
                for name in names
            ),
        ),
        dict.fromkeys(range(replicas), dict.fromkeys(names, RATE)),
    )


def one(*, queue: NamespaceQueue | None = None, rates: Rates | None = None) -> Overview:
    namespace = a_namespace("orders", busy=2, workers=1000)
    queues = () if queue is None else (queue,)
    known = {1: {"orders": RATE}} if rates is None else rates
    return overview_of(an_activity(a_replica(1, namespace), queues=queues), known)


def test_a_screen_shows_everything_known() -> None:
    queue = a_queue("orders", due=12, oldest=3.25, timers=1500, retries=3, behind=7)

    lines = [re.split(r"\s{2,}", line) for line in shown(one(queue=queue))]

    assert lines == [
        ["progressor at 127.0.0.1:7420", "2026-01-01 00:00:00.000Z"],
        [
            "steps 1,234/s", "failed 0.2/s", "busy 2 of 1,000", "callers 0",
            "replicas 1 serving",
        ],
        ["due 12, the oldest for 3.2 s", "timers 1,500", "retries 3", "behind 7"],
        [""],
        [
            "namespace", "steps/s", "failed/s", "busy", "due", "oldest", "timers", "retries",
            "behind", "mean ms", "unreachable",
        ],
        ["orders", "1,234", "0.2", "2 of 1,000", "12", "3.2 s", "1,500", "3", "7", "250.0"],
        [""],
        [
            "replica", "id", "state", "heartbeat", "steps/s", "steps", "callers", "version",
        ],
        ["host-1", "1", "serving", "0.0 s ago", "1,234", "2", "0", "1.2.3"],
        [""],
        ["slowest processor", "mean ms", "asked/s", "failed/s", "unreachable"],
        ["orders", "250.0", "2.0", "0.2"],
    ]  # fmt: skip


def test_what_has_constraints_is_told_beside_where_there_is_any() -> None:
    queue = a_queue(
        "orders", due=12, oldest=3.25, run_at_count=5, order_count=4, gate_count=21,
        gate_age=seconds(180), full_gate_count=2, available_count=3, available_age=seconds(7.5),
        held_count=6,
    )  # fmt: skip

    lines = [re.split(r"\s{2,}", line) for line in shown(one(queue=queue))]

    assert lines[2] == ["due 12, the oldest for 7.5 s", "timers 0", "retries 0", "behind 0"]
    assert lines[3] == [
        "run at 5", "order 4", "gate 21, the oldest for 180 s, at 2 full", "available 3", "held 6",
    ]  # fmt: skip
    assert lines[5:7] == [
        [
            "namespace", "steps/s", "failed/s", "busy", "due", "oldest", "timers", "retries",
            "behind", "run at", "order", "gate", "available", "mean ms", "unreachable",
        ],
        [
            "orders", "1,234", "0.2", "2 of 1,000", "12", "7.5 s", "0", "0", "0", "5", "4", "21",
            "3", "250.0",
        ],
    ]  # fmt: skip


@pytest.mark.parametrize("estimated", [False, True])
def test_processes_are_counted_by_status_if_there_are_any(estimated: bool) -> None:
    queue = a_queue(
        "orders", due=1, oldest=3.25, running_process_count=1_000, error_process_count=12,
        process_count_is_estimate=estimated,
    )  # fmt: skip

    lines = [re.split(r"\s{2,}", line) for line in shown(one(queue=queue))]

    total = "processes ~1,012" if estimated else "processes 1,012"
    assert lines[3] == [total, "init 0", "running 1,000", "broken 12", "finished 0"]
    assert lines[5][8:] == ["behind", "broken", "mean ms", "unreachable"]
    assert lines[6][8:] == ["0", "12", "250.0"]


def test_tasks_of_processes_in_error_are_shown_if_there_are_any() -> None:
    queue = a_queue(
        "orders", due=1, oldest=3.25, process_failed_count=500, process_failed_age=seconds(180)
    )

    lines = [re.split(r"\s{2,}", line) for line in shown(one(queue=queue))]

    assert lines[3] == ["process failed 500, the oldest for 180 s"]
    assert lines[5][8:] == ["behind", "process failed", "mean ms", "unreachable"]
    assert lines[6][8:] == ["0", "500", "250.0"]


def test_paused_namespaces_are_shown_if_there_are_any() -> None:
    queue = a_queue("orders", due=1, oldest=180, paused_age=seconds(200))

    lines = [re.split(r"\s{2,}", line) for line in shown(one(queue=queue))]

    assert lines[3] == ["paused 1 namespace, the longest for 200 s"]
    assert lines[5][8:] == ["behind", "paused", "mean ms", "unreachable"]
    assert lines[6][8:] == ["0", "200 s", "250.0"]


def test_jobs_that_fail_and_schedules_that_are_late_are_told() -> None:
    queue = a_queue(
        "orders", job_count=10_000, ready_node_count=2, failed_node_count=4,
        schedule_count=450, late_schedule_count=2,
    )  # fmt: skip
    overview = overview_of(an_activity(a_replica(1), queues=(queue,), exact_below=400), {})

    assert shown(overview)[3:5] == [
        "jobs 10,000+   nodes 2 ready, 4 failed",
        "schedules 450+   paused 0   late 2",
    ]


def test_what_is_not_known_is_not_shown_as_nothing() -> None:
    lines = shown(one(rates={}))

    assert lines[1].startswith("steps …/s   failed …/s")
    assert lines[5].split() == ["orders", *"……", "2", "of", "1,000", *"…" * 5]


def test_a_count_that_was_ended_may_be_of_more() -> None:
    queue = a_queue("orders", due=400, oldest=1.0, timers=399, retries=401)
    overview = overview_of(
        an_activity(a_replica(1), queues=(queue, a_queue("parcels", due=1)), exact_below=400), {}
    )
    lines = shown(overview)

    assert lines[2].startswith("due 401+, the oldest for 1.0 s   timers 399   retries 401+")
    assert lines[5].split()[6:11] == ["400+", "1.0", "s", "399", "401+"]
    assert "+" not in lines[6]


def test_queues_that_are_old_cut_or_not_there_are_told() -> None:
    old = overview_of(an_activity(a_replica(1), queues_age=34.0, uncounted=7), {})
    missing = overview_of(an_activity(a_replica(1), queues_age=None), {})

    assert shown(old)[2].endswith("counted 34 s ago  7 more namespaces were not counted")
    assert shown(missing)[2] == "the queues could not be counted"


def test_an_engine_that_is_away_is_told_with_its_reason_in_one_line() -> None:
    away = Away(since=START, lasting=seconds(75), reason="GONE", message="it\nis \x1b[2Jgone")

    assert shown(one(), away=away)[1] == (
        "engine unavailable since 2026-01-01 00:00:00.000Z, for 75 s: it is [2Jgone"
    )


def test_a_name_on_the_screen_cannot_control_the_terminal() -> None:
    lines = shown(overview_of(an_activity(a_replica(1, name="\x1b[2Jhost\n")), {}))

    assert lines[5].startswith("[2Jhost  ")


def test_rows_without_room_are_counted() -> None:
    lines = shown(crowd(300), height=24)

    assert len(lines) == 24
    # 3 lines above, 6 around the tables, 2 replicas, and 6 for each of the others but for one.
    assert lines[4].startswith("namespace (292 more)")
    assert sum(line.startswith("namespace-") for line in lines) == 8 + SLOWEST_MAX
    assert lines[14].startswith("replica  ")


def test_a_low_screen_has_fewer_tables() -> None:
    assert not any(line.startswith("slowest") for line in shown(crowd(300), height=11))
    low = shown(crowd(300), height=8)
    assert low[4].startswith("namespace (297 more)")
    assert not any(line.startswith("replica") for line in low)
    assert shown(crowd(300), height=5)[3:] == ["", ""]


def test_a_narrow_screen_has_fewer_columns() -> None:
    heads = shown(crowd(3), width=60)[4].split()

    assert heads[:5] == ["namespace", "steps/s", "busy", "due", "oldest"]
    assert "behind" not in heads


@given(
    st.integers(1, 30), st.integers(1, 5), st.integers(1, 240), st.integers(1, 60), st.booleans(),
    st.sampled_from((0, 12_345)),
)  # fmt: skip
def test_a_screen_is_never_exceeded_and_no_number_in_it_is_cut(
    namespaces: int, replicas: int, width: int, height: int, is_away: bool, lines_long: int
) -> None:
    away = Away(since=START, lasting=seconds(1), reason="GONE", message="gone")
    overview = crowd(namespaces, replicas, lines=lines_long)
    lines = shown(overview, width=width, height=height, away=away if is_away else None)

    assert len(lines) <= height
    assert max(map(cell_len, lines)) <= width
    rows = [line.split() for line in lines if line.startswith(("namespace-", "host-"))]
    assert not any("…" in word for row in rows for word in row[1:])


@pytest.mark.parametrize(
    ("age", "text"),
    [
        (seconds(0), "0.0 s"),
        (seconds(9.94), "9.9 s"),
        (seconds(10), "10 s"),
        (seconds(599), "599 s"),
        (seconds(600), "10 min"),
        (dt.timedelta(hours=9), "540 min"),
        (dt.timedelta(hours=10), "10 h"),
        (dt.timedelta(days=100), "2,400 h"),
    ],
)
def test_an_age_is_shown_with_fitting_precision(age: dt.timedelta, text: str) -> None:
    assert age_text(age) == text
