"""The invariants of storage: what holds for the tables at all times, despite crashes and losses.

Each invariant is one statement of ``*.sql``, so it sees one snapshot of a running system. Comments
there say what it means, and whether it is deep or *lasting*. The rows that it returns violate it:
namespace, the id of a process or schedule (empty if there is none), and a detail. Only a deep
invariant reads whole tables; the cost of the others grows with the running and waiting tasks. A
lasting invariant may be violated briefly while a replica works on it, so it is checked repeatedly,
and only rows found each time count.
"""

import dataclasses
import re
import time
from collections.abc import Iterator
from typing import Final, LiteralString

from psycopg import sql
from psycopg.rows import DictRow

from progressor.storage.doctor import findings
from progressor.storage.doctor.environment.work import see_replicas
from progressor.storage.doctor.findings import OFFENDERS_MAX, Verdict
from progressor.storage.doctor.run import Check, DoctorRun
from progressor.storage.postgres import statements

GROUP = "invariants"

LOOKS: Final = 20
"""How often an invariant is asked again that may be broken for a moment: for 10 s. What a replica
has at hand it sees to within milliseconds, and the scan to what a dead one has left behind within
two scans, 2 s with the defaults."""

PAUSE_SECONDS: Final = 0.5
SUSPECTS_MAX: Final = 1000

_FACT = re.compile(r"^-- (says|deep|lasting)(?:: (.*))?$", re.MULTILINE)
# The offenders are counted where they are: they may be millions.
_COUNTED = sql.SQL(
    "SELECT l.namespace, l.process_id, l.detail, count(*) OVER () AS count"
    " FROM (\n{invariant}\n) l LIMIT {limit}"
)
# The same ones each time, should there be more.
_ORDERED = sql.SQL(
    "SELECT l.namespace, l.process_id, l.detail FROM (\n{invariant}\n) l"
    " ORDER BY 1, 2, 3 LIMIT {limit}"
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Invariant:
    """One invariant: its statement, whose rows break it, and what it says in a sentence.

    ``logged``: what it forbids may be there for a moment, while a replica is at it, and a replica
    that cannot see to it logs this; else it is empty.
    """

    name: str
    query: LiteralString
    says: str
    deep: bool = False
    logged: str = ""

    def examine(self, doctor_run: DoctorRun) -> Verdict:
        """Count what breaks the invariant, and name the first of it. May block for LOOKS pauses."""
        if self.logged:
            return self._examine_for_long(doctor_run)
        query = _COUNTED.format(invariant=sql.SQL(self.query), limit=sql.Literal(OFFENDERS_MAX))
        broken = doctor_run.rows(query, by_index=not self.deep)
        if not broken:
            return findings.ok(self.says)
        return self._broken(
            broken[0]["count"],
            [_words(row) for row in broken],
            advice=(
                "Keep the rows and the logs, and report it: the engine never writes this, so ask "
                "who else writes into the schema progressor, and whether it was copied or restored."
            ),
        )

    def _examine_for_long(self, doctor_run: DoctorRun) -> Verdict:
        query = _ORDERED.format(invariant=sql.SQL(self.query), limit=sql.Literal(SUSPECTS_MAX))
        suspects = {_words(row) for row in doctor_run.rows(query, by_index=True)}
        for _ in range(LOOKS):
            if not suspects:
                return findings.ok(self.says)
            time.sleep(PAUSE_SECONDS)
            suspects &= {_words(row) for row in doctor_run.rows(query, by_index=True)}
        if not suspects:
            return findings.ok(self.says)
        if not see_replicas(doctor_run).serving:
            return findings.not_done(
                f"{findings.count_of(len(suspects), 'row')} waiting for upkeep, and no replica is "
                f"serving: {self.says}",
                advice="Start a replica, and ask again.",
            )
        return self._broken(
            len(suspects),
            sorted(suspects),
            advice=(
                "The replicas should have repaired this within seconds: look in their logs for the "
                f"reason (`{self.logged}`), end any session that keeps rows locked, "
                "and report a bug if there is none."
            ),
        )

    def _broken(self, count: int, offenders: list[str], *, advice: str) -> Verdict:
        return findings.failed(
            f"{findings.count_of(count, 'row', one='violates', more='violate')} the invariant: "
            f"{self.says}",
            advice=advice,
            offenders=offenders,
        )


def _invariants() -> Iterator[Invariant]:
    for subject in ("processes", "gates", "jobs", "schedules", "bulks", "audit"):
        for name, query in statements.load(f"doctor/invariants/{subject}").items():
            facts = dict(_FACT.findall(query))
            yield Invariant(
                name=name,
                query=query,
                says=facts["says"],
                deep="deep" in facts,
                logged=facts.get("lasting", ""),
            )


INVARIANTS = tuple(sorted(_invariants(), key=lambda it: it.deep))
"""Those of each subject in turn, the deep ones last."""


def checks(*, deep: bool) -> tuple[Check, ...]:
    """Return the invariants as checks: those that are cheap, or all."""
    return tuple(
        Check(group=GROUP, name=invariant.name, examine=invariant.examine)
        for invariant in INVARIANTS
        if deep or not invariant.deep
    )


def _words(row: DictRow) -> str:
    where = "/".join(filter(None, (row["namespace"], row["process_id"])))
    return f"{where}: {row['detail']}"
