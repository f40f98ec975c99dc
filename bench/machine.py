"""The machine and the commit of a measurement."""

import os
import platform
import subprocess
import sysconfig
from pathlib import Path

from bench.peers import ROOT


def machine() -> str:
    gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    system = f"{platform.system()} {platform.machine()}"
    return f"{os.cpu_count()} x {_cpu_model()}, {gigabytes:.0f} GB, {system}"


def python() -> str:
    is_plain = "--enable-optimizations" not in (sysconfig.get_config_var("CONFIG_ARGS") or "")
    how = " (built without --enable-optimizations)" if is_plain else ""
    return f"{platform.python_version()}{how}"


def commit() -> str:
    """Return the measured commit, with a + if files differ from it."""
    try:
        head = _git("rev-parse", "--short", "HEAD")
        return head + ("+" if _git("status", "--porcelain") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()
