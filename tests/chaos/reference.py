"""How fast the machine is at the moment, whatever the engine does: what rates are held against.

The speed of a virtual machine drifts by a third within minutes. So all through a run one and the
same piece of work is done again and again, and its cost is noted: CPU time, which is what nearly
all of a request's time is; what the hypervisor takes away; and what the disk takes to keep a page.
"""

import dataclasses
import os
import random
import statistics
import threading
import time
import zlib
from pathlib import Path
from typing import Self

_PAUSE_SECONDS = 0.1
_SYNC_EVERY = 5
_PIECE = random.Random(1).randbytes(16_384) * 8  # Half a millisecond: 0.5 % of one core.
_STAT = Path("/proc/stat")  # see proc(5)
_PAGE = bytes(8_192)


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """What a piece of work cost at an instant; ``sync_seconds`` None: the disk was not asked.

    ``ticks`` are those of all CPUs since the machine began: all, the idle, and the stolen.
    """

    at: float
    cpu_seconds: float
    sync_seconds: float | None
    ticks: tuple[int, int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Speed:
    """Of the machine in a window.

    ``pieces_per_ms`` of work of a CPU, less what was stolen; ``busy`` is the share of all CPUs
    that anybody had, and was stolen; ``sync_ms`` is the disk's median.
    """

    pieces_per_ms: float
    busy: float
    sync_ms: float


class Reference:
    def __init__(self, directory: Path) -> None:
        """Do nothing yet; the page is kept in `directory`."""
        self.samples: list[Sample] = []
        self._path = directory / "reference"
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reference", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        self._path.unlink(missing_ok=True)

    def speed(self, begun_at: float, ended_at: float) -> Speed | None:
        """Return the speed between two instants of the monotonic clock; None: nothing is known."""
        inside = [sample for sample in self.samples if begun_at <= sample.at <= ended_at]
        synced = [it.sync_seconds for it in inside if it.sync_seconds is not None]
        if not synced:
            return None
        # The mean: what others take away comes in pieces, and the engine pays for all of them.
        cost = statistics.fmean(sample.cpu_seconds for sample in inside)
        ticks = zip(inside[0].ticks, inside[-1].ticks, strict=True)
        whole, idle, stolen = (end - begin for begin, end in ticks)
        return Speed(
            pieces_per_ms=round(1e-3 / max(cost, 1e-9) * (1.0 - stolen / max(whole, 1)), 3),
            busy=round(1.0 - idle / max(whole, 1), 2),
            sync_ms=round(statistics.median(synced) * 1e3, 2),
        )

    def _run(self) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            while not self._ending.wait(_PAUSE_SECONDS):
                begun_at = time.thread_time()
                zlib.compress(_PIECE, 1)  # lets go of the interpreter's lock
                cost = time.thread_time() - begun_at
                is_synced = len(self.samples) % _SYNC_EVERY == 0
                synced = _sync(file) if is_synced else None
                self.samples.append(Sample(time.monotonic(), cost, synced, _ticks()))
        finally:
            os.close(file)


def _ticks() -> tuple[int, int, int]:
    try:
        with _STAT.open(encoding="ascii") as file:
            counts = [int(word) for word in file.readline().split()[1:9]]
    except OSError:
        return (0, 0, 0)  # Not Linux: nothing is known.
    _user, _nice, _system, idle, waiting, _irq, _softirq, stolen = counts
    return (sum(counts), idle + waiting, stolen)


def _sync(file: int) -> float:
    begun_at = time.monotonic()
    os.pwrite(file, _PAGE, 0)
    os.fdatasync(file)
    return time.monotonic() - begun_at
