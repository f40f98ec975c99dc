"""Findings: the results of a doctor run, worded for an on-call engineer."""

import dataclasses
import enum

OFFENDERS_MAX = 10


class State(enum.StrEnum):
    """How a check came out; the worst last."""

    OK = "ok"
    NOT_DONE = "not_done"
    WARNING = "warning"
    FAILED = "failed"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What one check says.

    ``words`` is one sentence with its numbers, ``advice`` what to do about it, empty where all is
    well; ``offenders`` names the first OFFENDERS_MAX of what the words count.
    """

    state: State
    words: str
    advice: str = ""
    offenders: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert bool(self.advice) == (self.state is not State.OK), f"{self.state}: {self.advice!r}"
        assert len(self.offenders) <= OFFENDERS_MAX, f"{len(self.offenders)} offenders"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finding(Verdict):
    group: str
    check: str


def ok(words: str) -> Verdict:
    return Verdict(state=State.OK, words=words)


def not_done(words: str, *, advice: str) -> Verdict:
    return Verdict(state=State.NOT_DONE, words=words, advice=advice)


def warning(words: str, *, advice: str, offenders: list[str] | None = None) -> Verdict:
    """Return what should be looked at, but breaks no promise by itself."""
    return _told(State.WARNING, words, advice, offenders)


def failed(words: str, *, advice: str, offenders: list[str] | None = None) -> Verdict:
    """Return what breaks a promise, or keeps work from being done."""
    return _told(State.FAILED, words, advice, offenders)


def count_of(count: int, what: str, *, one: str = "", more: str = "") -> str:
    """Return a count with its noun, and with its verb: `one` of one, `more` of others."""
    verb = one if count == 1 else more
    return f"{_count_of(count, what)} {verb}" if verb else _count_of(count, what)


def _count_of(count: int, what: str) -> str:
    if count == 1:
        return f"1 {what}"
    if what.endswith("y") and not what.endswith(("ay", "ey", "oy", "uy")):
        return f"{count:,} {what[:-1]}ies"
    return f"{count:,} {what}{'es' if what.endswith(('s', 'x')) else 's'}"


def span_of(seconds: float) -> str:
    """Return a duration for people: milliseconds to days, three figures of it."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{_figures(seconds / size)} {unit}"
    return f"{_figures(seconds)} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def bytes_of(count: int) -> str:
    for size, unit in ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= size:
            return f"{_figures(count / size)} {unit}"
    return f"{count} bytes"


def _figures(number: float) -> str:
    return f"{number:.3g}" if number < 100 else f"{number:,.0f}"  # noqa: PLR2004  three figures


def _told(state: State, words: str, advice: str, offenders: list[str] | None) -> Verdict:
    named = tuple(offenders or ())[:OFFENDERS_MAX]
    return Verdict(state=state, words=words, advice=advice, offenders=named)
