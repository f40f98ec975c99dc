"""A rollout of nine schema changes to three databases: what each waits for, and when it starts.

The changes are requested in the worst order while the rollout is closed, and accepted at once as
durable tasks. Then it is opened, and each change starts when its constraints are satisfied.
"""

import asyncio
import time
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from progressor.example.rollout import AT_ONCE, Change, changes, constraints
from progressor.example.scenario import ScenarioError, attempting
from progressor.sdk import (
    Client,
    ProcessNotFoundError,
    TaskStatus,
    Wait,
    WaitCause,
)

_TIMEOUT_SECONDS = 30.0
_NIGHT_SECONDS = 1.0
_UNWANTED, _AT_NIGHT, _WRONG = "2.0", "1.11", "1.3"
_CHANGES = {
    "orders": (_UNWANTED, _AT_NIGHT, "1.10", _WRONG, "1.2"),
    "billing": ("1.10", "1.2"),
    "stock": ("1.10", "1.2"),
}
_STYLES = {"begins": "bold cyan", "is applied": "green", "fails": "red"}


class RolloutScenario:
    """One run, printed as it happens; `run` makes its databases unique."""

    _client: Client

    def __init__(self, *, console: Console, run: str) -> None:
        self._console, self._run = console, run
        self.processor = changes(self._observe)
        self._rollout = f"spring-{run}"
        self._begun_at = time.monotonic()
        self._events: asyncio.Queue[tuple[Change, str]] = asyncio.Queue()
        self._causes: dict[str, str] = {}
        self._applied: list[Change] = []
        self._running: list[Change] = []

    async def play(self, client: Client) -> tuple[str, ...]:
        """Run the scenario, which takes seconds; return the process ids of the changes.

        Args:
            client: Its namespace is that of the changes.

        Raises:
            ScenarioError: An unexpected result; the message says which.
        """
        self._client = client
        async with attempting("roll out", seconds=_TIMEOUT_SECONDS):
            left = await self._submit()
            await self._open()
            await self._watch(left)
            for change in self._applied:
                # The outcome is durable a moment after the processor's answer.
                await self._client.await_task(change.process_id, idempotency_key="change")
        return tuple(change.process_id for change in reversed(self._applied))

    def _observe(self, change: Change, what: str) -> None:
        self._events.put_nowait((change, what))

    async def _submit(self) -> dict[str, Change]:
        """Request all changes, the newest versions first, and cancel one."""
        await self._client.gates.set(f"rollout/{self._rollout}", 0)
        self._begun_at = time.monotonic()
        left: dict[str, Change] = {}
        for name, versions in _CHANGES.items():
            for version in versions:
                change = Change(
                    database=f"{name}-{self._run}", version=version, is_wrong=version == _WRONG
                )
                await self._client.start(
                    change.process_id,
                    change,
                    idempotency_key="change",
                    accept_only=True,
                    constraints=constraints(
                        change,
                        self._rollout,
                        wait_seconds=_NIGHT_SECONDS if version == _AT_NIGHT else 0.0,
                    ),
                )
                left[change.process_id] = change
        self._say(
            f"{len(left)} changes of {len(_CHANGES)} databases accepted; the rollout is closed"
        )
        await self._show_causes(left)
        [unwanted] = [change for change in left.values() if change.version == _UNWANTED]
        await self._client.cancel(unwanted.process_id, idempotency_key="change")
        self._say(f"{self._name(unwanted)} is cancelled", style="yellow")
        del left[unwanted.process_id]
        return left

    async def _open(self) -> None:
        self._say(f"the rollout is open, for {AT_ONCE} at once")
        await self._client.gates.set(f"rollout/{self._rollout}", AT_ONCE)

    async def _watch(self, left: dict[str, Change]) -> None:
        """Print the start and end of each change, and what the others wait for then."""
        while left:
            change, what = await self._events.get()
            if what == "begins":
                self._begins(change)
            else:
                self._running.remove(change)
                del left[change.process_id]
            if what == "is applied":
                self._applied.append(change)
            self._say(f"{self._name(change)} {what}", style=_STYLES[what])
            await self._show_causes(left)

    def _begins(self, change: Change) -> None:
        """Check that a change may start."""
        same = [it for it in self._running if it.database == change.database]
        if same:
            raise ScenarioError("run one change at a time", f"{change.process_id} with {same}")
        if len(self._running) >= AT_ONCE:
            raise ScenarioError("limit the rollout", f"{change.process_id}: {self._running}")
        done = [it for it in self._applied if it.database == change.database]
        if any(_number(it.version) > _number(change.version) for it in done):
            raise ScenarioError("follow the versions", f"{change.process_id} after {done}")
        self._running.append(change)

    async def _show_causes(self, left: dict[str, Change]) -> None:
        """Print what each waiting change waits for, if that has changed."""
        for change in left.values():
            if change in self._running:
                continue
            try:
                waits = (await self._client.get(change.process_id)).waits
            except ProcessNotFoundError:
                # Its first step has just been rejected.
                continue
            text = self._cause_text(waits[0]) if waits else ""
            if text and text != self._causes.get(change.process_id):
                self._causes[change.process_id] = text
                self._say(f"    {self._name(change):<13} {text}", style="dim")

    def _cause_text(self, wait: Wait) -> str:
        """Return what a task waits for, shorter than its explanation; "": it runs."""
        if wait.cause is WaitCause.RUNNING:
            return ""
        if wait.status is TaskStatus.AVAILABLE:
            return "is available"
        return "waits for " + ", ".join(self._causes_of(wait)).replace(f"-{self._run}", "")

    def _causes_of(self, wait: Wait) -> Iterator[str]:
        if wait.cause is WaitCause.RUN_AT:
            yield "its time"
        if wait.order is not None:
            yield f"version {wait.order.version} ({wait.order.status.value})"
        for gate in wait.gates:
            position = f", position {gate.position}" if gate.position else ""
            yield f"{gate.gate} ({gate.held} of {gate.capacity} held{position})"

    def _name(self, change: Change) -> str:
        return change.process_id.replace(f"-{self._run}", "")

    def _say(self, text: str, *, style: str = "") -> None:
        at = f"{time.monotonic() - self._begun_at:6.2f} s  "
        self._console.print(Text.assemble((at, "dim"), (text, style)), soft_wrap=True)


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
