"""Warehouses, which orders ask by a message to pick their items.

They are processes of another namespace, with a processor of their own: an order neither knows
where that is served, nor waits for it.
"""

import msgspec

from progressor.sdk import Processor, Reject, Step


class Warehouse(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a warehouse, and the args of its init: how many of each item it has."""

    stock: dict[str, int]


class Pick(msgspec.Struct, frozen=True):
    """A call: take an item from its shelf."""

    item: str


warehouses = Processor("warehouse", state=Warehouse)


@warehouses.init
async def build(step: Step[Warehouse]) -> None:
    """Take the stock."""
    step.state = step.args_as(Warehouse)


@warehouses.call
async def pick(step: Step[Warehouse]) -> dict[str, str]:
    """Take one of an item; the sender gets the answer, or the rejection, as a reply."""
    item, stock = step.args_as(Pick).item, step.state.stock
    if not stock.get(item):
        raise Reject(f"there is no {item}", reason="OUT_OF_STOCK")
    step.state = Warehouse(stock={**stock, item: stock[item] - 1})
    return {"from": step.process_id}
