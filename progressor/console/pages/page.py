"""What a page is."""

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from progressor.console.actions.action import Action
from progressor.console.visits.visit import Ask

_NAMESPACES_MAX = 1000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page: ``path`` is a route, ``template`` a file in ``templates``.

    ``load`` returns what the template shows; ``section`` is the entry of the menu that it is under;
    ``actions`` are those on what the page is about. ``parameters``: those of its address that say
    what it is about, which its forms keep. ``is_live``: whether it is sent again as it changes.
    """

    path: str
    template: str
    section: str
    title: str
    load: Callable[[Ask], Awaitable[Mapping[str, Any]]]
    actions: tuple[Action, ...] = ()
    parameters: frozenset[str] = frozenset({"id"})
    is_live: bool = True


async def namespace_of(ask: Ask) -> tuple[str, tuple[str, ...]]:
    """Return the namespace in the address of a list, else the first, and all that the visitor sees.

    ``default`` where there is none at all, which the engine then says.
    """
    found, _ = await ask.client.namespaces.list(page_size=_NAMESPACES_MAX).page()
    names = tuple(it.name for it in found)
    return ask.one("namespace") or next(iter(names), "default"), names
