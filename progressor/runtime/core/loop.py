"""The loop of a scanner: interval, jitter, and what happens when a scan fails."""

import asyncio
import datetime as dt
import logging
import random
from collections.abc import Awaitable, Callable

from progressor import errors
from progressor.runtime.core.observer import Observers
from progressor.telemetry.metrics.registry import Metrics

_log = logging.getLogger(__name__)
JITTER = 0.1
"""The share of the interval by which a scan may come earlier or later."""


async def repeat(
    scan: Callable[[], Awaitable[None]],
    *,
    name: str,
    interval: dt.timedelta,
    spread: random.Random,
    observers: Observers,
    metrics: Metrics,
) -> None:
    """Scan for ever, about every `interval`; ends only by cancellation.

    A scan that fails is repeated with the next interval: it sees the same rows again. Replicas that
    started together drift apart by the jitter.
    """
    while True:
        try:
            await scan()
        except errors.StorageUnavailableError as error:
            _log.warning("scan failed", extra={"scan": name, "why": error.why})
            metrics.scans_failed.add(1, (name,))
            observers.tell("scan_failed", scan=name)
        except Exception:  # noqa: BLE001  one of the two places (STYLE, rule 8)
            # Limping is better than stopping here: other scans, and the steps, do go on.
            _log.exception("scan failed", extra={"scan": name})
            metrics.scans_failed.add(1, (name,))
            observers.tell("scan_failed", scan=name)
        observers.tell("scanned", scan=name)
        await asyncio.sleep(interval.total_seconds() * (1 + spread.uniform(-JITTER, JITTER)))
