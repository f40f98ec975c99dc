"""Schema changes of several databases: each change is a process, whose first step applies it.

    change  ── waits ──►  available  ──►  applied
               │ for smaller versions on its database (order: 1.2 before 1.10)
               │ for its database (a gate of capacity 1: one change at a time)
               │ for its rollout (a gate of capacity 2: two databases at a time)
               └ for its time (run_at)

The processor needs no code for this: the engine runs the step when its constraints are satisfied.

The scenario rolls out nine changes to three databases. They are requested in the worst order while
the rollout is closed, and accepted at once as durable tasks. Then it is opened, and each change
starts when its constraints are satisfied.
"""

import asyncio
import datetime as dt
import time
from collections.abc import Callable, Iterator

import msgspec
from rich.console import Console
from rich.text import Text

from progressor.example.scenario import Scenario, ScenarioError
from progressor.sdk import (
    Constraints,
    ProcessNotFoundError,
    Processor,
    Reject,
    Step,
    TaskStatus,
    Wait,
    WaitCause,
)

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


def constraints(change: Change, rollout: str, *, wait_seconds: float) -> Constraints:
    """Return what a change waits for."""
    return Constraints(
        order=(change.database, change.version),
        gates={f"database/{change.database}": 1, f"rollout/{rollout}": AT_ONCE},
        run_at=dt.datetime.now(dt.UTC) + dt.timedelta(seconds=wait_seconds),
    )


def changes(observe: Callable[[Change, str], None]) -> Processor[Change]:
    """Return the processor; it calls `observe` when a change begins and when it ends."""
    processor = Processor("schema-changes", state=Change)

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


_NIGHT_SECONDS = 1.0
_UNWANTED, _AT_NIGHT, _WRONG = "2.0", "1.11", "1.3"
_CHANGES = {
    "orders": (_UNWANTED, _AT_NIGHT, "1.10", _WRONG, "1.2"),
    "billing": ("1.10", "1.2"),
    "stock": ("1.10", "1.2"),
}
_STYLES = {"begins": "bold cyan", "is applied": "green", "fails": "red"}


class RolloutScenario(Scenario):
    """What each change waits for, and when it starts."""

    goal = "roll out"
    commands = ("gate list -n {namespace}", "trace -n {namespace} {id}")

    def __init__(self, *, console: Console, run: str) -> None:
        super().__init__(console=console, run=run)
        self._events: asyncio.Queue[tuple[Change, str]] = asyncio.Queue()
        self.processor = changes(lambda change, what: self._events.put_nowait((change, what)))
        self._rollout = f"spring-{run}"
        self._begun_at = time.monotonic()
        self._left: dict[str, Change] = {}
        self._causes: dict[str, str] = {}
        self._applied: list[Change] = []
        self._running: list[Change] = []

    async def _play(self) -> tuple[str, ...]:
        await self._client.gates.set(f"rollout/{self._rollout}", 0)
        self._begun_at = time.monotonic()
        for name, versions in _CHANGES.items():
            for version in versions:
                await self._request(name, version)
        count = len(self._left)
        self._tell(f"{count} changes of {len(_CHANGES)} databases accepted; the rollout is closed")
        await self._show_causes()
        unwanted = f"orders-{self._run}-{_UNWANTED}"
        await self._client.cancel(unwanted, idempotency_key="change")
        self._tell(f"{self._name(self._left.pop(unwanted))} is cancelled", style="yellow")
        self._tell(f"the rollout is open, for {AT_ONCE} at once")
        await self._client.gates.set(f"rollout/{self._rollout}", AT_ONCE)
        while self._left:
            await self._follow(*await self._events.get())
        for change in self._applied:
            # The outcome is durable a moment after the processor's answer.
            await self._client.await_task(change.process_id, idempotency_key="change")
        return tuple(change.process_id for change in reversed(self._applied))

    async def _request(self, name: str, version: str) -> None:
        database = f"{name}-{self._run}"
        change = Change(database=database, version=version, is_wrong=version == _WRONG)
        wait_seconds = _NIGHT_SECONDS if version == _AT_NIGHT else 0.0
        await self._client.start(
            change.process_id,
            change,
            idempotency_key="change",
            accept_only=True,
            constraints=constraints(change, self._rollout, wait_seconds=wait_seconds),
        )
        self._left[change.process_id] = change

    async def _follow(self, change: Change, what: str) -> None:
        if what == "begins":
            self._expect_allowed(change)
            self._running.append(change)
        else:
            self._running.remove(change)
            del self._left[change.process_id]
        if what == "is applied":
            self._applied.append(change)
        self._tell(f"{self._name(change)} {what}", style=_STYLES[what])
        await self._show_causes()

    def _expect_allowed(self, change: Change) -> None:
        if len(self._running) >= AT_ONCE:
            raise ScenarioError("limit the rollout", f"{change.process_id}: {self._running}")
        if any(it.database == change.database for it in self._running):
            raise ScenarioError("run one change at a time", f"{change}: {self._running}")
        done = [it for it in self._applied if it.database == change.database]
        if any(_number(it.version) > _number(change.version) for it in done):
            raise ScenarioError("follow the versions", f"{change.process_id} after {done}")

    async def _show_causes(self) -> None:
        """Print what each waiting change waits for, if that has changed."""
        for process_id, change in self._left.items():
            if change in self._running:
                continue
            try:
                waits = (await self._client.get(process_id)).waits
            except ProcessNotFoundError:
                # Its first step has just been rejected.
                continue
            text = self._cause_text(waits[0]) if waits else ""
            if text and text != self._causes.get(process_id):
                self._causes[process_id] = text
                self._tell(f"    {self._name(change):<13} {text}", style="dim")

    def _cause_text(self, wait: Wait) -> str:
        """Return what a task waits for, shorter than its explanation; "": it runs."""
        if wait.cause is WaitCause.RUNNING:
            return ""
        if wait.status is TaskStatus.AVAILABLE:
            return "is available"
        return f"waits for {', '.join(_causes_of(wait))}".replace(f"-{self._run}", "")

    def _name(self, change: Change) -> str:
        return change.process_id.replace(f"-{self._run}", "")

    def _tell(self, text: str, *, style: str = "") -> None:
        at = f"{time.monotonic() - self._begun_at:6.2f} s  "
        self._say(Text.assemble((at, "dim"), (text, style)))


def _causes_of(wait: Wait) -> Iterator[str]:
    if wait.cause is WaitCause.RUN_AT:
        yield "its time"
    if wait.order is not None:
        yield f"version {wait.order.version} ({wait.order.status.value})"
    for gate in wait.gates:
        position = f", position {gate.position}" if gate.position else ""
        yield f"{gate.gate} ({gate.held} of {gate.capacity} held{position})"


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
