"""Schema changes of several databases: each change is a process, whose first step applies it.

    change  ── waits ──►  available  ──►  applied
               │ for smaller versions on its database (order: 1.2 before 1.10)
               │ for its database (a gate of capacity 1: one change at a time)
               │ for its rollout (a gate of capacity 2: two databases at a time)
               └ for its time (run_at)

The processor needs no code for this: the engine runs the step when its constraints are satisfied.
"""

import asyncio
import datetime as dt
from collections.abc import Callable

import msgspec

from progressor.sdk import Constraints, NamespaceConfig, Processor, Reject, Step

NAMESPACE = "schema-changes"
AT_ONCE = 2
"""Databases that a rollout changes at once."""


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A change of one database. A real one would run SQL for minutes."""

    database: str
    version: str
    seconds: float = 0.15
    is_wrong: bool = False

    @property
    def process_id(self) -> str:
        """The id of its process: a change is applied once, even if it is requested again."""
        return f"{self.database}-{self.version}"


Observer = Callable[[Change, str], None]
"""Called when a change begins and when it ends."""


def constraints(change: Change, rollout: str, *, wait_seconds: float = 0.0) -> Constraints:
    """Return what a change waits for."""
    return Constraints(
        order=(change.database, change.version),
        gates={f"database/{change.database}": 1, f"rollout/{rollout}": AT_ONCE},
        run_at=dt.datetime.now(dt.UTC) + dt.timedelta(seconds=wait_seconds),
    )


def changes(observe: Observer) -> Processor[Change]:
    """Return the processor, which calls the observer."""
    processor = Processor(NAMESPACE, state=Change)

    @processor.init
    async def apply(step: Step[Change]) -> str:
        change: Change = step.args_as(Change)
        observe(change, "begins")
        await asyncio.sleep(change.seconds)
        if change.is_wrong:
            # A rejected init creates no process, so no other change waits for it.
            observe(change, "fails")
            raise Reject(f"{change.version} does not fit {change.database}", reason="WRONG_CHANGE")
        observe(change, "is applied")
        step.emit({"applied": change.version})
        step.complete({"applied": change.version})
        return change.version

    return processor


def namespace(processor_target: str) -> NamespaceConfig:
    """Return the namespace of the changes."""
    return NamespaceConfig(name=NAMESPACE, processor_targets=(processor_target,))
