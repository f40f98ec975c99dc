"""Charts: the lines of rates over time, as the points of an SVG."""

import dataclasses
import datetime as dt
import math
from collections.abc import Callable, Sequence

from progressor.console.visits.meters import SHOWN, Rate

WIDTH, HEIGHT = 600, 100


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Settled and failed steps per second: both lines from 0 to ``top``, ending at ``last``."""

    settled: str
    failed: str
    top: float
    from_at: dt.datetime
    last: Rate


def chart_of(rates: Sequence[Rate]) -> Chart | None:
    """Return the chart of the last minutes; None: there is nothing to draw a line of."""
    if len(rates) < 2:  # noqa: PLR2004  a line has two ends
        return None
    top, from_at = _round_up(max(it.settled for it in rates)), rates[-1].at - SHOWN

    def line(value: Callable[[Rate], float]) -> str:
        return " ".join(
            f"{(it.at - from_at) / SHOWN * WIDTH:.1f},{(1 - value(it) / top) * HEIGHT:.1f}"
            for it in rates
        )

    return Chart(
        settled=line(lambda it: it.settled),
        # An attempt that fails is not always settled: the line stays within the chart.
        failed=line(lambda it: min(it.failed, top)),
        top=top,
        from_at=from_at,
        last=rates[-1],
    )


def _round_up(value: float) -> float:
    """Return the next 1, 2 or 5 times a power of ten, at least 1: a scale that seldom changes."""
    size = 10.0 ** math.floor(math.log10(max(value, 1.0)))
    return next(it * size for it in (1, 2, 5, 10) if it * size >= value)
