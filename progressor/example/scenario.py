"""A client with two orders, which go through everything that can happen to an order.

The first is paid, after a wrong amount and a reminder; its warehouse is down, so it breaks, is
repaired and shipped. The second is never paid and expires. The scenario waits for a timer by
awaiting its task.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator

import msgspec
from rich.console import Console
from rich.text import Text

from progressor import errors
from progressor.example.order import Order, Pay, Reroute, Ship, orders
from progressor.sdk import (
    Client,
    NamespaceAlreadyExistsError,
    NamespaceConfig,
    ProcessFailedError,
    ProcessStatus,
    ProgressorError,
    RejectedError,
    TaskType,
)

_PRICE = 42


class ScenarioError(errors.ProgressorError):
    """A scenario had an unexpected result."""

    reason = "SCENARIO_FAILED"

    def __init__(self, step: str, why: str) -> None:
        self.step, self.why = step, why
        super().__init__(f"the example failed to {step}: {why}")


@contextlib.contextmanager
def explaining(step: str) -> Iterator[None]:
    """Turn an error of progressor into a ScenarioError of this step."""
    try:
        yield
    except ScenarioError:
        raise
    except ProgressorError as error:
        raise ScenarioError(step, f"{error} ({error.reason})") from error


@contextlib.asynccontextmanager
async def attempting(step: str, *, seconds: float) -> AsyncIterator[None]:
    """Do the same with a timeout."""
    try:
        with explaining(step):
            async with asyncio.timeout(seconds):
                yield
    except TimeoutError as error:
        raise ScenarioError(step, f"it did not end within {seconds:g} s") from error


class Scenario:
    """One run, printed as it happens; `run` makes the ids of its orders unique."""

    processor = orders
    _client: Client

    def __init__(self, *, console: Console, run: str) -> None:
        self._console = console
        self._shipped, self._expired = f"order-{run}", f"order-{run}-unpaid"

    async def play(self, client: Client) -> tuple[str, ...]:
        """Run the scenario, which takes seconds; return the ids of the orders.

        Args:
            client: Its namespace is `orders`.

        Raises:
            ScenarioError: An unexpected result; the message says which.
        """
        self._client = client
        await self._pay_late()
        await self._break_and_repair()
        await self._let_expire()
        return self._shipped, self._expired

    async def _pay_late(self) -> None:
        order_id = self._shipped
        order = Order(item="tea", price=_PRICE)
        with self._step("start", order_id, order):
            answer = await self._client.start(order_id, order, idempotency_key="place")
            self._answered(answer.response)
        with self._step("call", order_id, Pay(amount=1)):
            try:
                await self._client.call(order_id, Pay(amount=1))
            except RejectedError as error:
                self._refused(f"rejected, the order is unchanged: {error.message}")
            else:
                raise ScenarioError("reject a wrong amount", "it was accepted")
        await self._await_timer(order_id, 1, "reminded")
        with self._step("call", order_id, Pay(amount=_PRICE)):
            # With a key the client may repeat this; the order is paid once.
            answer = await self._client.call(order_id, Pay(amount=_PRICE), idempotency_key="pay")
            self._answered(answer.response)

    async def _break_and_repair(self) -> None:
        order_id = self._shipped
        with self._step("call", order_id, Ship()):
            try:
                await self._client.call(order_id, Ship())
            except ProcessFailedError as error:
                self._refused(f"three attempts, then the order broke: {error.detail}")
            else:
                raise ScenarioError("break the order", "it was shipped from a closed warehouse")
        with self._step("repair", order_id, Reroute(warehouse="south")):
            answer = await self._client.repair(order_id, Reroute(warehouse="south"))
            self._answered(answer.response)
        with self._step("call", order_id, Ship()):
            answer = await self._client.call(order_id, Ship(), idempotency_key="ship")
            self._answered(answer.response)
        await self._expect_finished(order_id, {"shipped": True})

    async def _let_expire(self) -> None:
        order_id = self._expired
        order = Order(item="cake", price=_PRICE, expire_after=0.4)
        with self._step("start", order_id, order):
            answer = await self._client.start(order_id, order, idempotency_key="place")
            self._answered(answer.response)
        await self._await_timer(order_id, 1, "reminded")
        await self._await_timer(order_id, 2, "expired")
        await self._expect_finished(order_id, {"shipped": False})

    async def _await_timer(self, order_id: str, position: int, event: str) -> None:
        """Wait until the timer of this position, from 1, has run, and check its event."""
        with self._step("timer", order_id, None):
            tasks = (await self._client.trace(order_id)).tasks
            timers = [task.task_id for task in tasks if task.type is TaskType.TIMEOUT]
            if len(timers) < position:
                raise ScenarioError(f"find timer {position}", f"there are {len(timers)}")
            await self._client.await_task(order_id, task_id=timers[position - 1])
            history = (await self._client.get(order_id)).history
            if not any(event in it.payload for it in history):
                raise ScenarioError(f"find the event {event}", f"{len(history)} other events")
            self._answered(event)

    async def _expect_finished(self, order_id: str, result: dict[str, bool]) -> None:
        with self._step("get", order_id, None):
            process = (await self._client.get(order_id)).process
            if process.status is not ProcessStatus.FINISHED or process.result != result:
                raise ScenarioError("finish", f"it is {process.status}: {process.result}")
            self._answered(f"{process.status} {_json(result)}")

    @contextlib.contextmanager
    def _step(self, verb: str, order_id: str, args: object) -> Iterator[None]:
        text = Text.assemble((f"{verb:>7} ", "bold cyan"), order_id)
        self._console.print(text if args is None else text.append(f"  {_json(args)}", "dim"))
        with explaining(f"{verb} {order_id}"):
            yield

    def _answered(self, answer: object) -> None:
        text = answer if isinstance(answer, str) else _json(answer)
        self._console.print(Text.assemble(("      ✓ ", "green"), text))

    def _refused(self, text: str) -> None:
        self._console.print(Text.assemble(("      ✗ ", "yellow"), text))


async def register(client: Client, config: NamespaceConfig) -> None:
    """Create the namespace of an example, or update it if it exists."""
    try:
        await client.namespaces.create(config)
    except NamespaceAlreadyExistsError:
        await client.namespaces.update(config, fields=("processor_targets", "retry_policies"))


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
