"""Draws a plot per question: rates, latencies, costs."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from bench.catalogue import QUESTIONS, Question
from bench.parts.percentiles import SHARES

Line = Mapping[str, Any]

_INCHES = (12.0, 5.0)
_DPI = 110
_COLOURS = MappingProxyType({
    "engine": "#3b6ea5", "postgres": "#d98c3f", "processor": "#6aa56a", "client": "#b0b0b0",
    "relay": "#8a6aa5", "driver": "#a56a6a",
})  # fmt: skip
_RATIOS = MappingProxyType({
    "ratio_to_relay": "of the relay", "ratio_to_empty": "of an empty RPC",
    "engine_ratio": "the engine's rate to this", "ratio_to_new": "times the cost on a new process",
    "ratio_to_one": "of one replica",
})  # fmt: skip


def draw(lines: Sequence[Line], folder: Path) -> None:
    """Write a PNG for each question with an answer among `lines`."""
    for question in QUESTIONS:
        mine = [line for line in lines if line["name"] in question.names]
        if mine:
            _draw_one(question, mine, folder / f"{question.name}.png")


def _draw_one(question: Question, lines: Sequence[Line], file: Path) -> None:
    figure = Figure(figsize=_INCHES, layout="constrained")
    if question.name == "open_loop":
        _all_curves(figure, lines)
    else:
        left, right = figure.subplots(1, 2)
        _LEFT.get(question.name, _rates)(left, lines)
        _costs(right, lines)
    first = lines[0]
    figure.suptitle(question.text)
    figure.supxlabel(
        f"{first['machine']}, PostgreSQL {first['postgres']}, Python {first['python']}, "
        f"commit {first['commit']}, {first['date']}",
        fontsize=7,
    )
    figure.savefig(file, dpi=_DPI)


def _rates(axes: Axes, lines: Sequence[Line]) -> None:
    """Draw the rates, and their ratios to what they are compared with."""
    names = [line["name"] for line in lines]
    bars = axes.bar(names, [line["ops_per_s"] for line in lines], color=_COLOURS["engine"])
    axes.bar_label(bars, fmt="{:,.0f}", fontsize=8, label_type="center", color="white")
    axes.set_title("a second")
    _tilt(axes, names)
    for field, meaning in _RATIOS.items():
        points = [(at, line[field]) for at, line in enumerate(lines) if line.get(field) is not None]
        if points:
            beside = axes.twinx()
            beside.plot(*zip(*points, strict=True), "o-", color="#b03030", label=meaning)
            beside.axhline(1.0, color="#b03030", linewidth=0.5, linestyle=":")
            beside.set_ylim(bottom=0)
            beside.legend(loc="lower right", fontsize=8)


def _times(axes: Axes, lines: Sequence[Line]) -> None:
    """Draw three percentiles of the latency, on a logarithmic scale."""
    names = [line["name"] for line in lines]
    width = 0.25
    for place, (field, label) in enumerate(
        (("p50_ms", "p50"), ("p99_ms", "p99"), ("p99_9_ms", "p99.9"))
    ):
        at = [number + (place - 1) * width for number in range(len(names))]
        bars = axes.bar(at, [line[field] for line in lines], width, label=label)
        axes.bar_label(bars, fmt="{:.3g}", fontsize=8)
    if "two_commits_p50_ms" in lines[0]:
        floor = lines[0]["relay_p50_ms"] + lines[0]["two_commits_p50_ms"]
        axes.axhline(floor, color="#b03030", label="relay and two commits, p50")
    axes.set_yscale("log")
    axes.set_title("milliseconds")
    axes.legend(fontsize=8)
    _tilt(axes, names)


def _all_curves(figure: Figure, lines: Sequence[Line]) -> None:
    """Draw a panel for each request, with unary and session and both rates."""
    whats = list(dict.fromkeys(line["name"].partition("_")[0] for line in lines))
    panels = figure.subplots(1, len(whats), sharey=True, squeeze=False)[0]
    for axes, what in zip(panels, whats, strict=True):
        _curves(axes, [line for line in lines if line["name"].startswith(f"{what}_")])
        axes.set_title(what)
    panels[0].set_ylabel("milliseconds since the request was due")


def _curves(axes: Axes, lines: Sequence[Line]) -> None:
    """Draw the share of requests that waited no longer than a time, one curve per rate."""
    shares = SHARES[:-1]
    places = range(len(shares))
    for line in lines:
        label = f"{line['name'].partition('_')[2]}: {line['rate_wanted']:,.0f}/s"
        axes.plot(places, line["curve_ms"][:-1], marker=".", label=label)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator(list(places)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FixedFormatter([f"{100 * share:g}" for share in shares]))
    axes.set_xlabel("percentile")
    axes.legend(fontsize=7)


def _memory(axes: Axes, lines: Sequence[Line]) -> None:
    """Draw the resident memory: before, with all calls in flight, and the peak."""
    names = [line["name"] for line in lines]
    width = 0.25
    for place, field in enumerate(("idle_rss_mb", "held_rss_mb", "peak_rss_mb")):
        at = [number + (place - 1) * width for number in range(len(names))]
        bars = axes.bar(at, [line[field] for line in lines], width, label=field)
        axes.bar_label(bars, fmt="{:.0f}", fontsize=8)
    axes.set_title(f"MB of the engine, {lines[0]['in_flight']:,} calls in flight")
    axes.legend(fontsize=8)
    _tilt(axes, names)


def _costs(axes: Axes, lines: Sequence[Line]) -> None:
    """Draw the CPU of an operation by component."""
    names = [line["name"] for line in lines]
    bottom = [0.0] * len(names)
    for component, colour in _COLOURS.items():
        costs = [line["cpu_ms_per_op"].get(component, 0.0) for line in lines]
        if any(costs):
            axes.bar(names, costs, bottom=bottom, color=colour, label=component)
            bottom = [below + cost for below, cost in zip(bottom, costs, strict=True)]
    axes.set_ylim(top=1.1 * max(bottom) or 1.0)
    axes.set_title("CPU milliseconds an operation")
    axes.legend(fontsize=8)
    _tilt(axes, names)


def _tilt(axes: Axes, names: Sequence[str]) -> None:
    """Tilt the labels so that they do not overlap."""
    axes.set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=8)


_LEFT: Mapping[str, Callable[[Axes, Sequence[Line]], None]] = MappingProxyType({
    "timers": _times, "latency": _times, "handover": _times, "in_flight": _memory,
})  # fmt: skip
