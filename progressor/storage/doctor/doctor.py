"""The doctor: all its checks on one database, for the command and for a replica that is asked."""

import concurrent.futures
import dataclasses
import datetime as dt
import threading
from asyncio import shield, wrap_future

from progressor.clock import Clock
from progressor.settings.config import Config
from progressor.storage.doctor.environment import checks as environment
from progressor.storage.doctor.findings import Finding
from progressor.storage.doctor.invariants import checks as invariants
from progressor.storage.doctor.run import open_run

KEPT_SECONDS = 15.0
"""For how long the findings of a run are those of the next ones."""

TIMEOUT = dt.timedelta(seconds=5)
"""Of one query of a replica: its own database must not pay for more."""


def examine(config: Config, dsn: str, *, deep: bool, timeout: dt.timedelta) -> tuple[Finding, ...]:
    """Run all checks on the database of a configuration. Blocks.

    Raises:
        StorageUnavailableError: PostgreSQL cannot be reached, or the connection was lost.
    """
    checks = (*environment.CHECKS, *invariants.checks(deep=deep))
    with open_run(
        dsn,
        database=config.database,
        replica=config.replica,
        timeout=timeout,
        namespaces=config.namespaces,
    ) as doctor_run:
        return tuple(check.find(doctor_run) for check in checks)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What the checks of a run found, and when they ended; ``kept_until`` is monotonic."""

    findings: tuple[Finding, ...]
    examined_at: dt.datetime
    kept_until: float


_Run = concurrent.futures.Future[Examination]


class Doctor:
    """The quick checks of a replica: one run at a time, whose findings are kept for a while."""

    def __init__(self, config: Config, dsn: str, clock: Clock) -> None:
        self._config, self._dsn, self._clock = config, dsn, clock
        self._run: _Run | None = None

    async def examine(self) -> Examination:
        """Return what the checks find; callers during a run share it.

        Cancelling this does not end the run, which cannot be stopped.

        Raises:
            StorageUnavailableError: PostgreSQL cannot be reached, or the connection was lost.
        """
        run = self._run
        if run is None or self._is_over(run):
            run = self._run = _Run()
            # Not of a pool, which the end of the program would wait for.
            threading.Thread(target=self._fill, args=(run,), name="doctor", daemon=True).start()
        return await shield(wrap_future(run))

    def _is_over(self, run: _Run) -> bool:
        if not run.done():
            return False
        return run.exception() is not None or self._clock.monotonic() >= run.result().kept_until

    def _fill(self, run: _Run) -> None:
        try:
            found = examine(self._config, self._dsn, deep=False, timeout=TIMEOUT)
        except Exception as error:  # noqa: BLE001  # raised again in each caller that waits
            run.set_exception(error)
        else:
            kept_until = self._clock.monotonic() + KEPT_SECONDS
            at = self._clock.now()
            run.set_result(Examination(findings=found, examined_at=at, kept_until=kept_until))
