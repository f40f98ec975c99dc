"""Schema changes, rolled out over databases: each change is a process, and its first step does it.

    change  ── waits ──►  available  ──►  applied
               │ for the change before it on its database (order: 1.2 before 1.10)
               │ for its database (a gate of one: changes of a database exclude each other)
               │ for a place in its rollout (a gate of two: two databases at once)
               └ for its night (run_at)

The processor knows nothing of all that: it is asked when its turn has come.
"""

import asyncio
import datetime as dt
from collections.abc import Callable

import msgspec

from progressor.sdk import Constraints, NamespaceConfig, Processor, Reject, Step

NAMESPACE = "schema-changes"
AT_ONCE = 2
"""Databases that a rollout changes at a time."""


class Change(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change of one database. A real one would run SQL for minutes."""

    database: str
    version: str
    seconds: float = 0.15
    is_wrong: bool = False

    @property
    def process_id(self) -> str:
        """Its process: a database is changed once, however many ask for it."""
        return f"{self.database}-{self.version}"


News = Callable[[Change, str], None]
"""Told of a change when it begins and when it ends."""


def constraints(change: Change, rollout: str, *, wait_seconds: float = 0.0) -> Constraints:
    """Return what a change waits for: the seed of all this, in four lines."""
    return Constraints(
        order=(change.database, change.version),
        gates={f"database/{change.database}": 1, f"rollout/{rollout}": AT_ONCE},
        run_at=dt.datetime.now(dt.UTC) + dt.timedelta(seconds=wait_seconds),
    )


def changes(tell: News) -> Processor[Change]:
    """Return the processor; it tells as it goes."""
    processor = Processor(NAMESPACE, state=Change)

    @processor.init
    async def apply(step: Step[Change]) -> str:
        change: Change = step.args_as(Change)
        tell(change, "begins")
        await asyncio.sleep(change.seconds)
        if change.is_wrong:
            # It was never started, and holds up no other.
            tell(change, "fails")
            raise Reject(f"{change.version} does not fit {change.database}", reason="WRONG_CHANGE")
        tell(change, "is applied")
        step.emit({"applied": change.version})
        step.complete({"applied": change.version})
        return change.version

    return processor


def namespace(processor_target: str) -> NamespaceConfig:
    """Return the namespace of the changes."""
    return NamespaceConfig(name=NAMESPACE, processor_targets=(processor_target,))
