"""Every metric and span by its name, with its unit and one sentence."""

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """A metric that only grows; ``facts`` become its attributes, all of bounded cardinality."""

    name: str
    unit: str
    meaning: str
    facts: tuple[str, ...] = ()


COUNTERS: Mapping[str, Counter] = MappingProxyType(
    {
        "admitted": Counter(
            name="progressor_requests_admitted",
            unit="{task}",
            meaning="Requests that became durable tasks, or joined one by their idempotency key.",
        ),
        "settled": Counter(
            name="progressor_tasks_settled",
            unit="{task}",
            meaning="Attempts whose outcome was written.",
            facts=("task_type", "settlement"),
        ),
        "fenced": Counter(
            name="progressor_settlements_fenced",
            unit="{task}",
            meaning="Settlements refused because their lease was lost.",
        ),
        "abandoned": Counter(
            name="progressor_steps_abandoned",
            unit="{task}",
            meaning="Steps given up because no heartbeat could be written.",
        ),
        "scan_found": Counter(
            name="progressor_scan_found",
            unit="{task}",
            meaning="Due tasks that only the safety net found; zero in a healthy engine.",
            facts=("task_type",),
        ),
        "zombie_collected": Counter(
            name="progressor_zombies_collected",
            unit="{task}",
            meaning="Lost leases settled by this replica.",
            facts=("cause", "settlement"),
        ),
        "reply_fetched": Counter(
            name="progressor_replies_fetched",
            unit="{task}",
            meaning="Answers read because another replica had carried the task.",
        ),
        "notification_lost": Counter(
            name="progressor_notifications_lost",
            unit="{notification}",
            meaning="Notifications to other replicas that could not be sent.",
        ),
        "scan_failed": Counter(
            name="progressor_scans_failed",
            unit="{scan}",
            meaning="Scans that ended in an error and are repeated.",
            facts=("scan",),
        ),
    }
)
"""By the point that an observer is told of (worker/observer.py)."""

STEP_SPAN = "progressor.step"
"""One attempt of a task: from asking the processor to its answer."""
