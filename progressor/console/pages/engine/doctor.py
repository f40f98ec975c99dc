"""The doctor: what its quick checks find in the database of the engine, the worst first."""

import collections
from collections.abc import Mapping
from typing import Any

from progressor.console.pages.page import Page
from progressor.console.visits.visit import Ask
from progressor.console.words.words import mark
from progressor.sdk.client.replicas import FindingState

_TIMEOUT_SECONDS = 60.0
"""A run may have to look several times, and slow queries are given up one by one."""

_WORST_FIRST = (
    FindingState.FAILED,
    FindingState.WARNING,
    FindingState.NOT_DONE,
    FindingState.UNSPECIFIED,
    FindingState.OK,
)


async def _load(ask: Ask) -> Mapping[str, Any]:
    report = await ask.client.replicas.run_doctor(timeout=_TIMEOUT_SECONDS)
    counts = collections.Counter(it.state for it in report.findings)
    found = sorted(report.findings, key=lambda it: _WORST_FIRST.index(it.state))
    return {
        "report": report,
        "counts": [(state, counts[state]) for state in _WORST_FIRST if counts[state]],
        "faults": [it for it in found if it.state is not FindingState.OK],
        "healthy": [it for it in found if it.state is FindingState.OK],
    }


PAGE = Page(
    path="/doctor",
    template="engine/doctor.html",
    section="doctor",
    title=mark("Doctor"),
    load=_load,
)
