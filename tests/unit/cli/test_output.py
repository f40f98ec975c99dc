"""How values, errors and log records look."""

import base64
import dataclasses
import datetime as dt
import io
import json
import operator

import pytest
from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from progressor import errors
from progressor.cli.dev import reachable
from progressor.cli.input.job_documents import duration_of
from progressor.cli.input.options import json_object
from progressor.cli.output import (
    EPILOGUE,
    Column,
    ExitCode,
    SafeConsole,
    command_text,
    duration_text,
    exit_code_for,
    facts,
    one_line,
    only_ours,
    payload_text,
    render,
    report,
    show,
    table,
)
from progressor.cli.processes.timeline import timeline
from progressor.domain.processes.message import Sender
from progressor.sdk.values.constraints import TimeSpent
from progressor.sdk.values.messages import MessageKind
from progressor.sdk.values.processes import TaskStatus, TaskTrace, TaskType
from progressor.sdk.values.replies import MessageReply, TaskError

NOON = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One field of each kind."""

    at: dt.datetime = NOON
    wait: dt.timedelta = dt.timedelta(milliseconds=1500)
    type: TaskType = TaskType.CALL
    json: bytes = b'{"a": [1, 2.50]}'
    text: bytes = b"plain"
    binary: bytes = b"\xff"
    empty: bytes = b""
    nothing: None = None


def test_a_document_has_each_kind_of_field_in_its_form() -> None:
    assert json.loads(render(Sample())) == {
        "at": "2026-01-31T12:00:00+00:00",
        "wait_seconds": 1.5,
        "type": "call",
        "json": {"a": [1, 2.5]},
        "text_base64": "cGxhaW4=",
        "binary_base64": "/w==",
        "empty": None,
        "nothing": None,
    }


@pytest.mark.parametrize(
    ("payload", "shown"),
    [
        (None, ""),
        (b"", ""),
        (b'{"a":1}', '{"a":1}'),
        (b"plain", "plain"),
        (b"\xff", "<1 bytes>"),
        (b"\x1b[2J", r"'\x1b[2J'"),
        ('"\x9b"'.encode(), r'"\u009b"'),
        (b"[" * 5000, "[" * 2000 + " … (5,000)"),
        (b"x" * 3000, "x" * 2000 + " … (3,000)"),
    ],
)
def test_a_payload_for_people_is_readable_and_harmless(payload: bytes | None, shown: str) -> None:
    assert payload_text(payload) == shown


def test_foreign_text_is_one_line_that_cannot_control_the_terminal() -> None:
    assert one_line("two\nlines \x1b[2J\x07and\tmore") == "two lines [2J and more"


def test_redrawn_text_cannot_control_the_terminal() -> None:
    stream = io.StringIO()
    console = SafeConsole(file=stream, width=80, force_terminal=True)

    with Live(table({"id": Text}, ["a\x1b]0;title\x07b\nc"]), console=console) as live:
        live.refresh()

    assert "a ]0;title" in stream.getvalue()
    assert "\x1b]0" not in stream.getvalue()


@pytest.mark.parametrize(("is_terminal", "line_count"), [(False, 1), (True, 3)])
def test_a_sentence_stays_whole_in_a_pipe(is_terminal: bool, line_count: int) -> None:
    stream = io.StringIO()
    console = SafeConsole(file=stream, width=40, force_terminal=is_terminal)

    show({}, "word " * 20, as_json=False, console=console)

    assert len(stream.getvalue().splitlines()) == line_count


def test_a_command_to_be_copied_stays_whole_on_a_terminal() -> None:
    stream = io.StringIO()
    console = SafeConsole(file=stream, width=40, force_terminal=True, color_system=None)

    show({}, command_text("progressor " * 9), as_json=False, console=console)

    assert stream.getvalue() == f"{'progressor ' * 9}\n"


ROW = {
    "process": "p-1",
    "created": "today at noon",
    "events": "7",
    "why": "it broke " * 9,
    "note": "",
}


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (
            115,
            [
                "process  created        events  why",
                f"p-1      today at noon  7       {ROW['why']}",
            ],
        ),
        (
            60,
            [
                "process  created        events  why",
                "p-1      today at noon  7       it broke it broke it broke …",
            ],
        ),
        (
            45,
            [
                "process  events  why",
                "p-1      7       it broke it broke it broke …",
                "… not shown here: created",
            ],
        ),
        (20, ["process", "p-1", "… not shown here:", "created, events, why"]),
    ],
)
def test_a_narrow_terminal_has_shorter_texts_and_then_fewer_columns(
    width: int, lines: list[str]
) -> None:
    stream = io.StringIO()
    console = SafeConsole(file=stream, width=width, force_terminal=True, color_system=None)

    show(None, _table_of(ROW), as_json=False, console=console)

    assert [it.rstrip() for it in stream.getvalue().splitlines()] == [it.rstrip() for it in lines]


def test_a_pipe_gets_whole_rows_without_spaces_at_their_ends(
    capsys: pytest.CaptureFixture[str],
) -> None:
    long = {"why": "it broke " * 400, "b": "c"}

    show(None, _table_of(long), facts(long), as_json=False)

    why = long["why"]
    heading, *rows = capsys.readouterr().out.splitlines()
    assert heading == f"{'why':<{len(why)}}  b"
    assert rows == [f"{why}  c", f"why  {why}".rstrip(), "b    c"]


def _table_of(row: dict[str, str]) -> RenderableType:
    columns: dict[str, Column[dict[str, str]]] = {it: operator.itemgetter(it) for it in row}
    return table(columns, [row])


def test_a_payload_that_is_nested_too_deeply_to_be_read_stands_as_base64() -> None:
    payload = b"[" * 50_000 + b"]" * 50_000

    assert base64.b64decode(json.loads(render({"args": payload}))["args_base64"]) == payload


def test_every_class_of_error_has_an_exit_code() -> None:
    minute = dt.timedelta(minutes=1)
    expected = {
        errors.ConfigError("server.bind", "is odd"): ExitCode.USAGE,
        errors.InvalidRequestError(errors.FieldViolation("args", "is odd")): ExitCode.USAGE,
        errors.TaskNotFoundError("p", 1): ExitCode.NOT_FOUND,
        errors.RepairFailedError("p", "no", 1): ExitCode.STATE,
        errors.RejectedError("no", code=9): ExitCode.REJECTED,
        errors.DeadlineExceededError(None): ExitCode.DEADLINE,
        errors.OverloadedError("queue", minute): ExitCode.UNAVAILABLE,
        errors.ShuttingDownError(minute): ExitCode.UNAVAILABLE,
        errors.ReplicaStoppedError(minute): ExitCode.UNAVAILABLE,
        errors.StorageUnavailableError("away"): ExitCode.UNAVAILABLE,
        errors.EmbeddedPostgresError("no binaries"): ExitCode.USAGE,
    }

    assert {error: exit_code_for(error) for error in expected} == expected


def test_of_a_group_the_first_error_is_reported_and_a_bug_among_them_comes_out() -> None:
    first, second = errors.TaskNotFoundError("p", 1), errors.RejectedError("no", code=9)
    ours = ExceptionGroup("", [ExceptionGroup("", [first]), second])
    with_a_bug = ExceptionGroup("", [ours, ValueError()])

    assert only_ours(first) is only_ours(ours) is first
    with pytest.raises(ExceptionGroup) as caught:
        only_ours(with_a_bug)
    assert caught.value is with_a_bug


def test_the_help_explains_every_exit_code() -> None:
    explained = {line.split()[0] for line in EPILOGUE.splitlines() if line.startswith("  ")}

    assert explained == {str(int(code)) for code in ExitCode if code < ExitCode.INTERRUPTED}


def test_an_error_names_its_fields_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    retry_after = dt.timedelta(seconds=2)
    violation = errors.FieldViolation("process_id", "is empty")

    report(errors.OverloadedError("queue", retry_after), as_json=True)
    overloaded = json.loads(capsys.readouterr().err)["error"]
    report(errors.InvalidRequestError(violation), as_json=True)
    invalid = json.loads(capsys.readouterr().err)["error"]

    assert overloaded["fields"] == {"what": "queue", "retry_after_seconds": 2.0}
    assert invalid["fields"]["violations"] == [{"field": "process_id", "description": "is empty"}]


def test_a_sentence_is_not_repeated_by_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    report(errors.ProcessNotFoundError("orders", "order-1"), as_json=False)

    assert capsys.readouterr().err == (
        "error: process 'order-1' does not exist in namespace 'orders'\n"
        "  reason: PROCESS_NOT_FOUND\n"
    )


def test_markup_in_an_error_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    report(errors.RejectedError("[bold]no[/bold]", code=9), as_json=False)

    assert "[bold]no[/bold]" in capsys.readouterr().err


_REPLY = MessageReply(
    name="picked", kind=MessageKind.CALL, namespace="warehouse", process_id="north", task_id=7,
    number=1, response=b'{"from":"north"}',
)  # fmt: skip
_SENDER = Sender(namespace="orders", process_id="order-1", task_id=7)


def _task(**fields: object) -> TaskTrace:
    task = TaskTrace(
        task_id=1,
        type=TaskType.TIMEOUT,
        status=TaskStatus.WAITING,
        created_at=NOON,
        scheduled_at=NOON + dt.timedelta(seconds=90),
        started_at=None,
        finished_at=None,
        attempt_count=0,
        args=None,
        context={},
        idempotency_key="",
        response=None,
        error=None,
        events=(),
    )
    return dataclasses.replace(task, **fields)  # type: ignore[arg-type]  # any field


def _ended(attempt_count: int) -> TaskTrace:
    return _task(
        status=TaskStatus.FINISHED,
        scheduled_at=NOON,
        started_at=NOON + dt.timedelta(milliseconds=5),
        finished_at=NOON + dt.timedelta(milliseconds=12),
        attempt_count=attempt_count,
    )


def _spent(**seconds: float) -> TaskTrace:
    names = [field.name for field in dataclasses.fields(TimeSpent)]
    spent = TimeSpent(**{name: dt.timedelta(seconds=seconds.get(name, 0)) for name in names})
    return _task(status=TaskStatus.CANCELLED, finished_at=NOON, spent=spent)


def _shown(*tasks: TaskTrace) -> str:
    file = io.StringIO()
    Console(file=file, width=160).print(timeline(tasks))
    return file.getvalue()


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (_task(), "waiting  due 90.00 s after it was set"),
        (_task(status=TaskStatus.CANCELLED, finished_at=NOON), "cancelled  never started"),
        (_ended(2), "finished  in 12 ms, 2 attempts, the last in 7 ms"),
        (_ended(1), "finished  in 7 ms, 5 ms after it was due"),
        (_spent(gates=2.1, running=0.009), "⧗ 2.10 s for its gates, 9 ms running"),
        (
            _spent(time=60, order=1, process=2, available=3),
            "⧗ 60.00 s for its instant, 1.00 s for its order, 2.00 s for its process, 3.00 s for a",
        ),
        (_spent(running=0.0009), "⧗ waited for nothing"),
        (_task(sender=_SENDER), "from orders order-1, #7"),
        (_task(reply=_REPLY), "timeout picked #1"),
        (_task(reply=_REPLY), '→ warehouse north, call of #7: {"from":"north"}'),
        (
            _task(
                reply=dataclasses.replace(
                    _REPLY, error=TaskError(code=9, reason="EMPTY", message="no tea")
                )
            ),
            "→ warehouse north, call of #7: ✗ EMPTY: no tea",
        ),
    ],
)
def test_a_timeline_tells_how_long_a_task_took_and_where_its_time_went(
    task: TaskTrace, said: str
) -> None:
    assert said in _shown(task)


def test_a_timer_stands_where_it_fired_and_not_where_it_was_set() -> None:
    fired = _task(
        task_id=2,
        status=TaskStatus.FINISHED,
        started_at=NOON + dt.timedelta(seconds=9),
        finished_at=NOON + dt.timedelta(seconds=9),
        attempt_count=1,
    )
    call = _task(task_id=3, type=TaskType.CALL, scheduled_at=NOON, started_at=NOON)

    shown = _shown(fired, call)

    assert shown.index("call #3") < shown.index("timeout #2")


def test_an_object_is_not_a_list() -> None:
    with pytest.raises(errors.InvalidRequestError, match="--metadata: is not a JSON object"):
        json_object("--metadata", "[1]")


@pytest.mark.parametrize(
    ("bound", "reached"),
    [
        ("0.0.0.0:7420", "127.0.0.1:7420"),
        ("[::]:7420", "[::1]:7420"),
        ("127.0.0.1:1", "127.0.0.1:1"),
        ("unix:/run/p", "unix:/run/p"),
    ],
)
def test_a_listener_on_every_address_is_reached_by_loopback(bound: str, reached: str) -> None:
    assert reachable(bound) == reached


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (dt.timedelta(), "0s"),
        (dt.timedelta(microseconds=300), "0s"),
        (dt.timedelta(milliseconds=20), "20ms"),
        (dt.timedelta(seconds=1.5), "1.5s"),
        (dt.timedelta(seconds=60), "1m"),
        (dt.timedelta(minutes=5), "5m"),
        (dt.timedelta(minutes=90), "1h30m"),
        (dt.timedelta(days=1), "1d"),
        (dt.timedelta(days=366), "366d"),
        (dt.timedelta(days=1, seconds=1.25), "1d1.25s"),
        (dt.timedelta(seconds=-90), "-1m30s"),
    ],
)
def test_a_duration_is_printed_in_its_units(duration: dt.timedelta, text: str) -> None:
    assert duration_text(duration) == text


@pytest.mark.parametrize("seconds", [1, 1.5, 90, 5400, 86_400, 90_061.5])
def test_a_printed_duration_can_be_read_back(seconds: float) -> None:
    duration = dt.timedelta(seconds=seconds)

    assert duration_of(duration_text(duration)) == duration
