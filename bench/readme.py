"""Writes the table of figures in docs/: python -m bench.readme bench/out/…/results.jsonl."""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.catalogue import QUESTIONS
from bench.peers import ROOT

PAGE = ROOT / "docs/development/benchmarks.md"

Line = Mapping[str, Any]

_REGION = re.compile(r"(<!-- bench:begin -->\n).*?(<!-- bench:end -->)", re.DOTALL)
_HEADS = ("what", "name", "a second", "ratio", "p50", "p99", "CPU")
_COMPONENTS = ("engine", "postgres", "processor", "client")
_STANDING_IN = ("relay", "driver")
_RATIOS = {
    "ratio": "{:.2f} x (relay + 2 commits)",
    "ratio_to_empty": "{:.2f} of an empty RPC",
    "ratio_to_unfilled": "{:.2f} of an empty database",
    "engine_ratio": "engine: {:.2f} of this",
    "ratio_to_new": "{:.2f} x the cost on a new one",
    "ratio_to_one": "{:.2f} of one replica",
    "peak_rss_mb": "peak {:,.0f} MB",
    "ratio_to_relay": "{:.2f} of the relay",
    "ratio_to_off": "{:.3f} of it without",
    "ratio_to_notify": "{:.2f} of notifies by clients",
}


def figures(lines: Sequence[Line]) -> str:
    first = lines[0]
    rows = [_HEADS, ("---",) * len(_HEADS), *_rows(lines)]
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    return (
        f"`{first['command']}`, {first['date'][:10]}, commit `{first['commit']}`, on\n"
        f"{first['machine']}, Python {first['python']}, PostgreSQL {first['postgres']}, "
        "with everything on\nthis one machine, fsync and synchronous commit. Medians of the turns. "
        f"Times are milliseconds; CPU is\nmilliseconds per operation of {' / '.join(_COMPONENTS)}, "
        f"or of what stands in for the\nengine.\n\n{table}\n"
    )


def written(page: str, lines: Sequence[Line]) -> str:
    """Return a page with these figures.

    Raises:
        ValueError: It has no place for them.
    """
    text, count = _REGION.subn(lambda match: f"{match[1]}\n{figures(lines)}\n{match[2]}", page)
    if count != 1:
        message = f"the page has {count} regions bench:begin … bench:end"
        raise ValueError(message)
    return text


def _rows(lines: Sequence[Line]) -> Iterator[tuple[str, ...]]:
    by_name = {line["name"]: line for line in lines}
    for question in QUESTIONS:
        text = question.text
        for name in question.names:
            if name in by_name:
                yield (text, f"`{name}`", *_cells(by_name[name]))
                text = ""


def _cells(line: Line) -> tuple[str, ...]:
    return (
        f"{line['ops_per_s']:,.0f}", _ratio(line), f"{line['p50_ms']:.2f}",
        f"{line['p99_ms']:.2f}", _cpu(line["cpu_ms_per_op"]),
    )  # fmt: skip


def _ratio(line: Line) -> str:
    for field, words in _RATIOS.items():
        value = line.get(field)
        if value is not None:
            # A job has a peak for each turn.
            return words.format(max(value) if isinstance(value, list) else value)
    return ""


def _cpu(cpu: Mapping[str, float]) -> str:
    others = [
        f"{name} {cpu[name]:.3f}" for name in _STANDING_IN if cpu.get(name, 0.0) > cpu["engine"]
    ]
    own = " / ".join(f"{cpu[name]:.3f}" for name in _COMPONENTS)
    return f"{others[0]}; {own}" if others else own


if __name__ == "__main__":
    answers = [json.loads(line) for line in Path(sys.argv[1]).read_text("utf-8").splitlines()]
    PAGE.write_text(written(PAGE.read_text("utf-8"), answers), "utf-8")
