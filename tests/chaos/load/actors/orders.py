"""What the steps of actors are to do, as drawn by their clients; a step gets it as its args.

An order has an ``id`` and what the step does besides recording it:

- ``do``: "append" (nothing), "complete", or "fail", which breaks the process once;
- ``pause``: seconds; ``flaky``: how many attempts fail; ``stall``: the first one never ends;
- ``once``: use ``step.once``; ``long``: keep alive for longer than a step may take;
- ``timers``: changes of timers, each with a name and, unless it unsets, a delay and an order;
- ``send``: messages, each with a kind, a receiver, and whether a reply is wanted;
- ``from``: the sender of the message and its number, counted by sender and receiver.
"""

import random
from collections.abc import Sequence
from typing import Any

from tests.chaos.plan import TIMER_SECONDS

Order = dict[str, Any]

_NAMES = ("", "a", "b", "c")
_KINDS = {"notify": 70.0, "call": 25.0, "start": 5.0}
_BATCH = 40
_CANCELLED_PAUSE_SECONDS = 1.5


def draw(chosen: random.Random, element: str, peers: Sequence[str]) -> Order:
    """Return the order of a client's request; most do one or two things."""
    order: Order = {"id": element, "do": "fail" if chosen.random() < 0.02 else "append"}
    if chosen.random() < 0.5:
        order["pause"] = chosen.uniform(0.0, 0.1)
    if chosen.random() < 0.3:
        order["once"] = True
    if chosen.random() < 0.08:
        order["flaky"] = chosen.randint(1, 2)
    elif chosen.random() < 0.003:
        order["stall"] = True
    elif chosen.random() < 0.01:
        order["long"] = True
    if chosen.random() < 0.3:
        order["timers"] = _changes(chosen, element)
    if chosen.random() < 0.25:
        order["send"] = _messages(chosen, peers, chosen.randint(1, 3))
    return order


def draw_batch(chosen: random.Random, element: str, peers: Sequence[str]) -> Order:
    """Return the order to send many messages."""
    return {
        "id": element,
        "do": "append",
        "once": True,
        "send": _messages(chosen, peers, _BATCH),
    }


def draw_slow(chosen: random.Random, element: str) -> Order:
    """Return an order whose step can be cancelled while it runs."""
    pause = chosen.uniform(0.0, _CANCELLED_PAUSE_SECONDS)
    return {"id": element, "do": "append", "pause": pause, "once": chosen.random() < 0.5}


def _changes(chosen: random.Random, element: str, *, may_chain: bool = True) -> list[Order]:
    return [
        {"name": name, "unset": True}
        if chosen.random() < 0.2
        else _timer(chosen, name, f"{element}.{name or '-'}", may_chain=may_chain)
        for name in chosen.sample(_NAMES, chosen.randint(1, 3))
    ]


def _timer(chosen: random.Random, name: str, element: str, *, may_chain: bool) -> Order:
    order: Order = {"id": element, "do": "fail" if chosen.random() < 0.03 else "append"}
    if chosen.random() < 0.15:
        order["once"] = True
    if chosen.random() < 0.1:
        order["flaky"] = 1
    if may_chain and chosen.random() < 0.3:
        order["timers"] = _changes(chosen, element, may_chain=False)
    after = 0.0 if chosen.random() < 0.3 else chosen.uniform(0.0, TIMER_SECONDS)
    return {"name": name, "after": after, "order": order}


def _messages(chosen: random.Random, peers: Sequence[str], count: int) -> list[Order]:
    if not peers:
        return []
    near = chosen.sample(list(peers), min(3, len(peers)))
    return [_message(chosen, chosen.choice(near)) for _ in range(count)]


def _message(chosen: random.Random, peer: str) -> Order:
    [kind] = chosen.choices(list(_KINDS), list(_KINDS.values()))
    order: Order = {"do": "append"}
    fate = chosen.random()
    if fate < 0.02:
        order["flaky"] = 1
    elif fate < 0.023:
        order["do"] = "fail"
    elif fate < 0.0235:
        order["stall"] = True
    elif fate < 0.12:
        order["once"] = True
    return {
        "kind": kind,
        "to": peer,
        "reply": kind == "call" or chosen.random() < 0.1,
        "order": order,
    }
