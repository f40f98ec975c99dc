"""The log level, changed at run time: for a while or for good, and logged."""

import datetime as dt
import io
import json
import logging
from collections.abc import Iterator

import pytest

from progressor.telemetry.logs import level as log_level
from progressor.telemetry.logs.level import Level, LogLevelSwitch
from progressor.telemetry.logs.setup import set_up_logs
from tests.support.builders import seconds
from tests.support.runtime.timers import ManualTimers

FOREVER = dt.timedelta()


@pytest.fixture
def stream(root_logger: logging.Logger) -> io.StringIO:
    """Return where the log goes, which says info and above."""
    assert root_logger.name == "root"
    stream = io.StringIO()
    set_up_logs(level="info", log_format="json", stream=stream)
    return stream


@pytest.fixture
def timers() -> ManualTimers:
    return ManualTimers()


@pytest.fixture
def level(stream: io.StringIO, timers: ManualTimers) -> LogLevelSwitch:
    assert not stream.getvalue()
    return LogLevelSwitch(timers.later)


def events(stream: io.StringIO) -> Iterator[str]:
    return (json.loads(line)["event"] for line in stream.getvalue().splitlines())


def test_what_was_unheard_is_heard_once_the_level_is_lower(
    level: LogLevelSwitch, stream: io.StringIO
) -> None:
    logging.getLogger("room").debug("before")
    previous = level.set("debug", FOREVER)
    logging.getLogger("room").debug("after")

    assert previous == "info"
    assert [*events(stream)] == ["log level changed", "after"]


def test_a_level_for_a_while_ends_in_what_stood_before_the_first(
    level: LogLevelSwitch, timers: ManualTimers
) -> None:
    level.set("debug", seconds(600))
    timers.advance(599)
    meanwhile = log_level.current()
    previous = level.set("error", seconds(5))
    timers.advance(5)

    assert (meanwhile, previous, log_level.current()) == ("debug", "debug", "info")
    assert timers.waiting == 0


def test_a_level_for_good_outlasts_the_while_before_it(
    level: LogLevelSwitch, timers: ManualTimers
) -> None:
    level.set("debug", seconds(600))
    level.set("warning", FOREVER)
    timers.advance(600)
    level.set("error", seconds(1))
    timers.advance(1)

    assert log_level.current() == "warning"


@pytest.mark.parametrize(("before", "after"), [("debug", "error"), ("error", "debug")])
def test_the_log_tells_of_the_change_where_either_level_hears_it(
    level: LogLevelSwitch, stream: io.StringIO, before: Level, after: Level
) -> None:
    log_level.apply(before)
    level.set(after, seconds(60))

    (line,) = stream.getvalue().splitlines()
    told = json.loads(line)
    assert (told["event"], told["level_set"], told["seconds"]) == ("log level changed", after, 60)
