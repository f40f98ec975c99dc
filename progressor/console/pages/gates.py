"""The gates of a namespace, one gate with its holders and its queue, and waits for an order."""

from collections.abc import Mapping
from typing import Any

from progressor.console.actions import gates
from progressor.console.pages.page import Page, namespace_of
from progressor.console.visits.visit import Ask
from progressor.console.words.words import mark
from progressor.domain.gates.gate import COUNTED_MAX, HOLDERS_MAX, LINE_MAX
from progressor.sdk.values.processes import WaitCause

_PAGE_SIZE = 100
_ORDERS_SHOWN = 50


async def _load_list(ask: Ask) -> Mapping[str, Any]:
    namespace, namespaces = await namespace_of(ask)
    listing = ask.client.gates.list(page_size=_PAGE_SIZE, namespace=namespace)
    found, following = await listing.page(ask.one("page"))
    return {
        "gates": found,
        "following": following,
        "namespace": namespace,
        "namespaces": namespaces,
        "counted_max": COUNTED_MAX,
    }


async def _load_gate(ask: Ask) -> Mapping[str, Any]:
    view = await ask.client.gates.get(ask.name, namespace=ask.place["namespace"])
    return {
        "gate": view.gate,
        "holders": view.holders,
        "queue": view.line,
        "counted_max": COUNTED_MAX,
        "holders_max": HOLDERS_MAX,
        "queue_max": LINE_MAX,
    }


async def _load_orders(ask: Ask) -> Mapping[str, Any]:
    namespace, namespaces = await namespace_of(ask)
    listing = ask.client.list(
        causes=(WaitCause.ORDER,), namespace=namespace, page_size=_ORDERS_SHOWN
    )
    found, following = await listing.page(ask.one("page"))
    return {
        "processes": found,
        "following": following,
        "namespace": namespace,
        "namespaces": namespaces,
    }


LIST = Page(
    path="/gates",
    template="gates/list.html",
    section="gates",
    title=mark("Gates"),
    load=_load_list,
)
GATE = Page(
    path="/gates/{namespace}/{name:path}",
    template="gates/gate.html",
    section="gates",
    title=mark("Gate"),
    load=_load_gate,
    actions=gates.ACTIONS,
)
ORDERS = Page(
    path="/orders",
    template="gates/orders.html",
    section="gates",
    title=mark("Orders"),
    load=_load_orders,
)
