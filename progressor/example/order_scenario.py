"""A client with two orders, which go through everything that can happen to an order.

The first is paid, after a wrong amount and a reminder; its warehouse is down, so it breaks, is
repaired and shipped. The second is never paid and expires. The scenario waits for a timer by
awaiting its task.
"""

from progressor.example import order
from progressor.example.order import Order, Pay, Reroute, Ship, orders
from progressor.example.scenario import Scenario, ScenarioError
from progressor.sdk import (
    NamespaceConfig,
    ProcessFailedError,
    ProcessStatus,
    RejectedError,
)

_PRICE = 42


class OrderScenario(Scenario):
    """A paid order, and one that expires."""

    goal = "ship an order"
    commands = (
        "trace -n {namespace} {id}",
        """start -n {namespace} mine --args '{{"item":"tea","price":7}}'""",
        """call -n {namespace} mine --args '{{"type":"pay","amount":7}}'""",
    )
    processor = orders

    def namespace(self, processor_target: str) -> NamespaceConfig:
        return order.namespace(processor_target)

    async def _play(self) -> tuple[str, ...]:
        shipped, expired = f"order-{self._run}", f"order-{self._run}-unpaid"
        await self._place(shipped, Order(item="tea", price=_PRICE))
        wrong = await self._call(shipped, Pay(amount=1))
        self._refused(f"rejected, the order is unchanged: {wrong}")
        await self._await_timer(shipped, "reminder", "reminded")
        # With a key the client may repeat this; the order is paid once.
        await self._call(shipped, Pay(amount=_PRICE), key="pay")
        closed = await self._call(shipped, Ship())
        self._refused(f"three attempts, then the order broke: {closed}")
        with self._step("repair", shipped, Reroute(warehouse="south")):
            answer = await self._client.repair(shipped, Reroute(warehouse="south"))
            self._answered(answer.response)
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
            history = (await self._client.get(order_id)).history
            if not any(event in it.payload for it in history):
                raise ScenarioError(f"find the event {event}", f"{len(history)} other events")
            self._answered(event)

    async def _expect_finished(self, order_id: str, result: dict[str, bool]) -> None:
        with self._step("get", order_id):
            process = (await self._client.get(order_id)).process
            if process.status is not ProcessStatus.FINISHED or process.result != result:
                raise ScenarioError("finish", f"it is {process.status}: {process.result}")
            self._answered({str(process.status): result})
