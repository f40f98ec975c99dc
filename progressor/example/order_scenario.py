"""A client with two orders, which go through everything that can happen to an order.

The first is paid, after a wrong amount and a reminder; its warehouse is down, so it breaks, is
repaired and shipped. The second is never paid and expires. The scenario waits for a timer by
awaiting its task, and for the replies of the warehouses by looking at the history.
"""

import asyncio
import contextlib
from typing import Any

from progressor.example import order
from progressor.example.order import Order, Pay, Reroute, Ship, orders
from progressor.example.scenario import Scenario, ScenarioError
from progressor.example.warehouse import Warehouse, warehouses
from progressor.sdk import (
    NamespaceConfig,
    ProcessAlreadyExistsError,
    ProcessFailedError,
    ProcessStatus,
    RejectedError,
)

_PRICE = 42
_PAUSE_SECONDS = 0.05


class OrderScenario(Scenario):
    """A paid order, and one that expires."""

    goal = "ship an order"
    commands = (
        "trace -n {namespace} {id}",
        """start -n {namespace} mine --args '{{"item":"tea","price":7}}'""",
        """call -n {namespace} mine --args '{{"type":"pay","amount":7}}'""",
    )
    processor = orders
    others = (warehouses,)

    def namespace(self, processor_target: str) -> NamespaceConfig:
        return order.namespace(processor_target)

    async def _play(self) -> tuple[str, ...]:
        shipped, expired = f"order-{self._run}", f"order-{self._run}-unpaid"
        for warehouse in ("north", "south"):
            with contextlib.suppress(ProcessAlreadyExistsError):  # from an earlier run
                stock = Warehouse(stock={"tea": 1000, "cake": 1000})
                await self._client.start(warehouse, stock, namespace=warehouses.name)
        await self._place(shipped, Order(item="tea", price=_PRICE))
        wrong = await self._call(shipped, Pay(amount=1))
        self._refused(f"rejected, the order is unchanged: {wrong}")
        await self._await_timer(shipped, "reminder", "reminded")
        # With a key the client may repeat this; the order is paid once.
        await self._call(shipped, Pay(amount=_PRICE), key="pay")
        await self._await_pick(shipped, "north")
        closed = await self._call(shipped, Ship())
        self._refused(f"three attempts, then the order broke: {closed}")
        with self._step("repair", shipped, Reroute(warehouse="south")):
            answer = await self._client.repair(shipped, Reroute(warehouse="south"))
            self._answered(answer.response)
        await self._await_pick(shipped, "south")
        await self._call(shipped, Ship(), key="ship")
        await self._expect_finished(shipped, {"shipped": True})

        await self._place(expired, Order(item="cake", price=_PRICE, expire_after=0.4))
        await self._await_timer(expired, "reminder", "reminded")
        await self._await_timer(expired, "expiry", "expired")
        await self._expect_finished(expired, {"shipped": False})
        return shipped, expired

    async def _place(self, order_id: str, order: Order) -> None:
        with self._step("start", order_id, order):
            answer = await self._client.start(order_id, order, idempotency_key="place")
            self._answered(answer.response)

    async def _call(self, order_id: str, args: Pay | Ship, *, key: str = "") -> str:
        """Call with a key, or return why a call without one is refused."""
        with self._step("call", order_id, args):
            try:
                answer = await self._client.call(order_id, args, idempotency_key=key)
            except (RejectedError, ProcessFailedError) as error:
                if key:
                    raise
                return error.message if isinstance(error, RejectedError) else error.detail
            if not key:
                raise ScenarioError(f"refuse {args}", f"the answer is {answer.response}")
            self._answered(answer.response)
        return ""

    async def _await_timer(self, order_id: str, name: str, event: str) -> None:
        """Wait until the timer of this name has run, and check its event."""
        with self._step("timer", order_id):
            tasks = (await self._client.trace(order_id)).tasks
            timers = {task.timer_name: task.task_id for task in tasks}
            await self._client.await_task(order_id, task_id=timers[name])
            events = await self._events(order_id)
            if not any(event in each for each in events):
                raise ScenarioError(f"find the event {event}", f"{len(events)} other events")
            self._answered(event)

    async def _events(self, order_id: str) -> list[Any]:
        return [it.payload for it in (await self._client.get(order_id)).history]

    async def _await_pick(self, order_id: str, warehouse: str) -> None:
        """Wait until the reply of a warehouse has come."""
        event = {"picked": {"from": warehouse}}
        with self._step("reply", order_id):
            while event not in await self._events(order_id):  # noqa: ASYNC110  # in the engine
                await asyncio.sleep(_PAUSE_SECONDS)
            self._answered(event)

    async def _expect_finished(self, order_id: str, result: dict[str, bool]) -> None:
        with self._step("get", order_id):
            process = (await self._client.get(order_id)).process
            if process.status is not ProcessStatus.FINISHED or process.result != result:
                raise ScenarioError("finish", f"it is {process.status}: {process.result}")
            self._answered({str(process.status): result})
