"""A rollout of nine schema changes over three databases: who waits for what, and when each starts.

They are asked for in the worst order, while the rollout is closed, and accepted at once, as durable
tasks. Then it is opened; each starts as soon as its constraints are satisfied.
"""

import asyncio
import time
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from progressor.example.rollout import AT_ONCE, Change, changes, constraints
from progressor.example.scenario import ScenarioError
from progressor.sdk import (
    Client,
    ProcessNotFoundError,
    ProgressorError,
    TaskStatus,
    Wait,
    WaitCause,
)

_PATIENCE_SECONDS = 30.0
_NIGHT_SECONDS = 1.0
_UNWANTED, _AT_NIGHT, _WRONG = "2.0", "1.11", "1.3"
_CHANGES = {
    "orders": (_UNWANTED, _AT_NIGHT, "1.10", _WRONG, "1.2"),
    "billing": ("1.10", "1.2"),
    "stock": ("1.10", "1.2"),
}
_STYLES = {"begins": "bold cyan", "is applied": "green", "fails": "red"}


class RolloutScenario:
    """One run, told as it happens; `run` makes its databases its own."""

    _client: Client

    def __init__(self, *, console: Console, run: str) -> None:
        self._console, self._run = console, run
        self.processor = changes(self._tell)
        self._rollout = f"spring-{run}"
        self._begun_at = time.monotonic()
        self._news: asyncio.Queue[tuple[Change, str]] = asyncio.Queue()
        self._causes: dict[str, str] = {}
        self._applied: list[Change] = []
        self._at_work: list[Change] = []

    async def play(self, client: Client) -> tuple[str, ...]:
        """Play it to its end, a few seconds later; return the processes that it leaves behind.

        Args:
            client: Of the namespace of the changes.

        Raises:
            ScenarioError: It went another way; the message says where and how.
        """
        self._client = client
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                left = await self._submit()
                await self._open()
                await self._watch(left)
                for change in self._applied:
                    # What its processor has said is durable a moment later.
                    await self._client.await_task(change.process_id, idempotency_key="change")
        except TimeoutError as error:
            raise ScenarioError("roll out in time", ", ".join(sorted(self._causes))) from error
        except ProgressorError as error:
            if isinstance(error, ScenarioError):
                raise
            raise ScenarioError("roll out", f"{error} ({error.reason})") from error
        return tuple(change.process_id for change in reversed(self._applied))

    def _tell(self, change: Change, what: str) -> None:
        """Hear of a change from its processor."""
        self._news.put_nowait((change, what))

    async def _submit(self) -> dict[str, Change]:
        """Ask for all changes, the newest versions first, and take one back."""
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
        self._say(f"{len(left)} changes of {len(_CHANGES)} databases accepted; none may begin yet")
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
        """Tell each change's beginning and end, and what the others wait for then."""
        while left:
            change, what = await self._news.get()
            if what == "begins":
                self._begins(change)
            else:
                self._at_work.remove(change)
                del left[change.process_id]
            if what == "is applied":
                self._applied.append(change)
            self._say(f"{self._name(change)} {what}", style=_STYLES[what])
            await self._show_causes(left)

    def _begins(self, change: Change) -> None:
        """See that it may."""
        beside = [it for it in self._at_work if it.database == change.database]
        if beside:
            raise ScenarioError("exclude each other", f"{change.process_id} beside {beside}")
        if len(self._at_work) >= AT_ONCE:
            raise ScenarioError("limit the rollout", f"{change.process_id}: {self._at_work}")
        done = [it for it in self._applied if it.database == change.database]
        if any(_number(it.version) > _number(change.version) for it in done):
            raise ScenarioError("go in the order of versions", f"{change.process_id} after {done}")
        self._at_work.append(change)

    async def _show_causes(self, left: dict[str, Change]) -> None:
        """Say of each that waits what it waits for, where that is another cause than before."""
        for change in left.values():
            if change in self._at_work:
                continue
            try:
                waits = (await self._client.get(change.process_id)).waits
            except ProcessNotFoundError:
                # Its first step has failed a moment ago.
                continue
            words = self._words(waits[0]) if waits else ""
            if words and words != self._causes.get(change.process_id):
                self._causes[change.process_id] = words
                self._say(f"    {self._name(change):<13} {words}", style="dim")

    def _words(self, wait: Wait) -> str:
        """Return all that a task waits for, shorter than its explanation; "" for one that runs."""
        if wait.cause is WaitCause.RUNNING:
            return ""
        if wait.status is TaskStatus.AVAILABLE:
            return "is available"
        return "waits for " + ", ".join(self._causes_of(wait)).replace(f"-{self._run}", "")

    def _causes_of(self, wait: Wait) -> Iterator[str]:
        if wait.cause is WaitCause.RUN_AT:
            yield "its night"
        if wait.order is not None:
            yield f"version {wait.order.version} ({wait.order.status.value})"
        for gate in wait.gates:
            place = f", number {gate.position} in line" if gate.position else ""
            yield f"{gate.gate} ({gate.held} of {gate.capacity} held{place})"

    def _name(self, change: Change) -> str:
        return change.process_id.replace(f"-{self._run}", "")

    def _say(self, words: str, *, style: str = "") -> None:
        at = f"{time.monotonic() - self._begun_at:6.2f} s  "
        self._console.print(Text.assemble((at, "dim"), (words, style)), soft_wrap=True)


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
