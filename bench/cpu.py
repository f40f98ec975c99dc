"""CPU seconds and memory by component, from /proc: each part's tree, PostgreSQL separately.

Source: proc(5), /proc/[pid]/stat, fields 4 (ppid) and 14 to 17 (utime, stime, cutime, cstime).
"""

import collections
import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")
_POSTGRES = "postgres"


class _Stat(NamedTuple):
    name: str
    parent: int
    seconds: float


def cpu_seconds(parts: Iterable[tuple[str, int]], *, all_postgres: bool) -> dict[str, float]:
    """Return the CPU seconds that each component has used, including ended children.

    Args:
        parts: The component and the root process of each part; components may occur repeatedly.
        all_postgres: Count every PostgreSQL on this machine, not only those below the parts: for a
            server that another program has started.
    """
    stats = _read_all()
    used: dict[str, float] = {_POSTGRES: 0.0}
    for component, root in parts:
        used.setdefault(component, 0.0)
        for pid in _tree(stats, root):
            name = _POSTGRES if stats[pid].name == _POSTGRES else component
            used[name] += stats[pid].seconds
    if all_postgres:
        used[_POSTGRES] = sum(stat.seconds for stat in stats.values() if stat.name == _POSTGRES)
    return used


def on_cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of one process, to the nanosecond.

    Source: Documentation/scheduler/sched-stats.rst of Linux, /proc/[pid]/schedstat.
    """
    return int((_PROC / str(pid) / "schedstat").read_text("ascii").split()[0]) / 1e9


def parent_of(pid: int) -> int:
    return _read_all()[pid].parent


def memory_mb(root: int) -> tuple[float, float]:
    """Return the current and the peak resident memory of a process and its children, in MB.

    A PostgreSQL that the process has started is left out, since its shared buffers would count once
    per session.

    Source: proc(5), /proc/[pid]/status, VmRSS and VmHWM.
    """
    now = peak = 0.0
    stats = _read_all()
    for pid in _tree(stats, root):
        if stats[pid].name == _POSTGRES:
            continue
        with contextlib.suppress(OSError):  # It has exited.
            lines = (_PROC / str(pid) / "status").read_text("utf-8").splitlines()
            fields = dict(line.split(":", 1) for line in lines)
            now += int(fields.get("VmRSS", "0").split()[0]) / 1024
            peak += int(fields.get("VmHWM", "0").split()[0]) / 1024
    return now, peak


def busy_seconds() -> float:
    """Return the seconds for which the cores have been busy, over all cores.

    Source: proc(5), /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal.
    """
    first = (_PROC / "stat").read_text("ascii").partition("\n")[0]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, first.split()[1:9])
    return (user + nice + system + irq + softirq + steal) / _TICKS


def _read_all() -> dict[int, _Stat]:
    stats = {}
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            text = (entry / "stat").read_text("utf-8", "replace")
        except OSError:
            continue  # It has exited.
        head, _, tail = text.rpartition(")")
        fields = tail.split()
        seconds = sum(map(int, fields[11:15])) / _TICKS
        stats[int(entry.name)] = _Stat(head.partition("(")[2], int(fields[1]), seconds)
    return stats


def _tree(stats: Mapping[int, _Stat], root: int) -> list[int]:
    """Return a process and its running descendants."""
    children = collections.defaultdict(list)
    for pid, stat in stats.items():
        children[stat.parent].append(pid)
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        waiting.extend(children[pid])
        if pid in stats:
            found.append(pid)
    return found
