"""An order, from its placing to its shipping or its expiry.

    placed ── pay ──► paid ── ship ──► shipped
      │              └ a message to the warehouse, which replies
      │                          └ the warehouse is down: in error, until a repair
      └ reminder, expiry: two timers

A processor carries out one step at a time and has no state of its own. The engine saves what a
handler sets, emits and returns in one transaction, and nothing if the handler raises.
"""

import grpc
import msgspec

from progressor.example.warehouse import Pick, warehouses
from progressor.sdk import NamespaceConfig, Processor, Reject, Retry, RetryPolicy, Step

CLOSED_WAREHOUSES = frozenset({"north"})


class Order(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of an order, and the args of its init. A real one would wait for days."""

    item: str
    price: int
    remind_after: float = 0.4
    expire_after: float = 60.0
    paid: bool = False
    warehouse: str = "north"


class Pay(msgspec.Struct, frozen=True, tag="pay"):
    """A call: pay for the order."""

    amount: int


class Ship(msgspec.Struct, frozen=True, tag="ship"):
    """A call: ship the order."""


class Reroute(msgspec.Struct, frozen=True, tag="reroute"):
    """A repair: use another warehouse."""

    warehouse: str


orders = Processor("orders", state=Order)


@orders.init
async def place(step: Step[Order]) -> dict[str, int]:
    """Take the order, and set timers for the reminder and for the end."""
    order: Order = step.args_as(Order)
    if order.price <= 0:
        raise Reject("the price must be greater than 0", code=grpc.StatusCode.INVALID_ARGUMENT)
    step.state = order
    step.emit({"placed": order.item})
    step.set_timer("reminder", after=order.remind_after)
    step.set_timer("expiry", after=order.remind_after + order.expire_after)
    return {"to_pay": order.price}


@orders.call
async def serve_customer(step: Step[Order]) -> dict[str, str]:
    """Answer a call; `args_as` rejects args that are neither Pay nor Ship."""
    match step.args_as(Pay | Ship):
        case Pay(amount=amount):
            return await pay(step, amount)
        case _:
            return ship(step)


async def charge(reference: str, amount: int) -> str:
    """Ask the payment provider for the money, and return its receipt; a stand-in for a request."""
    assert amount > 0, "an order has a price"
    return reference


async def pay(step: Step[Order], amount: int) -> dict[str, str]:
    """Take the money, once in all attempts, cancel the timers, and have the item picked.

    A rejection changes neither the order nor the timers.
    """
    if amount != step.state.price:
        raise Reject(f"the price is {step.state.price}, not {amount}", reason="WRONG_AMOUNT")
    reference = f"{step.process_id}/{step.task_id}"
    receipt = await step.once("charge", charge, reference, amount, type=str)
    step.state = msgspec.structs.replace(step.state, paid=True)
    step.emit({"paid": amount})
    step.unset_timer("reminder")
    step.unset_timer("expiry")
    ask_to_pick(step)
    return {"receipt": receipt}


def ask_to_pick(step: Step[Order]) -> None:
    """Call the warehouse after this step; `picked` gets the answer."""
    step.call(
        step.state.warehouse, Pick(step.state.item), namespace=warehouses.name, reply="picked"
    )


@orders.reply("picked")
async def picked(step: Step[Order]) -> None:
    """Note what the warehouse has answered; the customer does not wait for it."""
    error = step.reply.error
    answer = {"picked": step.reply.response} if error is None else {"not picked": error.reason}
    step.emit(answer)


def ship(step: Step[Order]) -> dict[str, str]:
    """Ship the order and finish; while the warehouse is down, let the engine retry."""
    order = step.state
    if not order.paid:
        raise Reject("the order is not paid", reason="NOT_PAID")
    if order.warehouse in CLOSED_WAREHOUSES:
        raise Retry(f"warehouse {order.warehouse} is down", reason="WAREHOUSE_DOWN")
    step.emit({"shipped": order.item, "from": order.warehouse})
    step.complete({"shipped": True})
    return {"shipped_from": order.warehouse}


@orders.repair
async def reroute(step: Step[Order]) -> dict[str, str]:
    """Repair a broken order with another warehouse."""
    warehouse = step.args_as(Reroute).warehouse
    step.state = msgspec.structs.replace(step.state, warehouse=warehouse)
    step.emit({"rerouted": warehouse})
    ask_to_pick(step)
    return {"warehouse": warehouse}


@orders.timeout("reminder")
async def remind(step: Step[Order]) -> None:
    """Remind the customer."""
    step.emit({"reminded": step.state.price})


@orders.timeout("expiry")
async def expire(step: Step[Order]) -> None:
    """End an order that has not been paid."""
    step.emit({"expired": step.state.item})
    step.complete({"shipped": False})


def namespace(processor_target: str) -> NamespaceConfig:
    """Return the namespace of the orders, in which calls have three attempts."""
    return NamespaceConfig(
        name=orders.name,
        processor_targets=(processor_target,),
        retry_policies={"call": RetryPolicy(attempts_max=3)},
    )
