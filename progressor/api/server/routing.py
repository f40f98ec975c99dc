"""Serves the services of several cells as one: each request goes to the cell of its namespace.

Each cell has servicers of its own, which know nothing of other cells. Requests without a namespace
go to the home cell, or to all of them: see `merging`.
"""

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any

from google.protobuf.message import Message

from progressor import errors
from progressor.api.calls.servicer import Backend, Servicer
from progressor.api.calls.traces import CallContext
from progressor.api.guard.rules import RULES
from progressor.api.namespaces import NamespaceServicer, create_from_wire, name_from_wire
from progressor.api.server.merging import CHAINED, MERGED, TOLERANT
from progressor.api.server.places import Places, naming
from progressor.domain.access.rights import EVERYTHING
from progressor.wire import fields as wire

Method = Callable[[Any, CallContext], Awaitable[Any]]

_OPERATIONS = frozenset({"GetBulk", "StopBulk", "ListBulkResults"})
_BULKS = frozenset({"PreviewBulk", "StartBulk"})


class Routed(Servicer):
    """One service of all cells."""

    def __init__(self, places: Places, servicers: Mapping[str, Servicer]) -> None:
        """Take the servicers of the cells by their names."""
        self._places = places
        self._servicers = servicers
        self.service = servicers[places.home].service  # type: ignore[misc]  # of each its own
        self._methods: Mapping[str, Mapping[str, Any]] = {
            cell: {
                rpc.name: it.method(rpc.name)
                for rpc in it.service.methods
                if not rpc.client_streaming
            }
            for cell, it in servicers.items()
        }

    def method(self, rpc: str) -> Any:  # noqa: ANN401  # each has a message type of its own
        """Return what serves an RPC for all cells."""
        if self.service.methods_by_name[rpc].server_streaming:
            return functools.partial(self._watch, rpc)
        if rpc == "CreateNamespace":
            return self._create
        if rpc == "DeleteNamespace":
            return self._delete
        if rpc in _OPERATIONS:
            return functools.partial(self._search, rpc)
        return functools.partial(self._serve, rpc)

    async def _call(self, cell: str, rpc: str, request: Any, context: CallContext) -> Any:  # noqa: ANN401  # of the RPC
        with self._places.calling(cell):
            return await self._methods[cell][rpc](request, context)

    async def _serve(self, rpc: str, request: Any, context: CallContext) -> Any:  # noqa: ANN401  # of the RPC
        namespace = _namespace_of(rpc, request)
        if not namespace:
            return await self._everywhere(rpc, request, context)
        cell = await self._cell_of(namespace)
        try:
            return await self._call(cell, rpc, request, context)
        except errors.NamespaceNotFoundError as error:
            # It may have been deleted, and created again in another cell.
            if error.namespace != namespace:
                raise
            self._places.forget(namespace)
            other = await self._cell_of(namespace)
            if other == cell:
                raise
            return await self._call(other, rpc, request, context)

    async def _everywhere(self, rpc: str, request: Any, context: CallContext) -> Any:  # noqa: ANN401  # of the RPC
        """Serve a request without a namespace: by all cells, or by the home cell."""
        if rpc in _BULKS:
            wire.refuse("filter.namespace", "must be given: this engine has several cells")
        if rpc == "ListAudit" and request.HasField("after_number"):
            words = "must not be given without a namespace: each cell has numbers of its own"
            wire.refuse("after_number", words)
        if rpc in CHAINED:
            return await self._chain(rpc, request, context)
        if rpc in MERGED:
            return await self._merge(rpc, request, context)
        return await self._call(self._places.home, rpc, request, context)

    async def _cell_of(self, namespace: str) -> str:
        """Return the cell of a namespace; the home cell refuses what there is not."""
        return (await self._places.find(namespace) if namespace else None) or self._places.home

    async def _watch(
        self,
        rpc: str,
        request: Any,  # noqa: ANN401  # of the RPC
        context: CallContext,
    ) -> AsyncGenerator[Message, None]:
        cell = await self._cell_of(_namespace_of(rpc, request))
        watch = self._methods[cell][rpc](request, context)
        with self._places.calling(cell):
            async with contextlib.aclosing(watch) as responses:
                async for message in responses:
                    yield message

    async def _create(self, request: Any, context: CallContext) -> Any:  # noqa: ANN401  # of the RPC
        # A request that is refused must not take the name.
        home = self._servicers[self._places.home]
        assert isinstance(home, NamespaceServicer), "it creates namespaces"
        with naming(self._places.home):
            home.check_creation(create_from_wire(request))
        cell = await self._places.place(request.namespace.name, request.namespace.cell)
        return await self._call(cell, "CreateNamespace", request, context)

    async def _delete(self, request: Any, context: CallContext) -> Any:  # noqa: ANN401  # of the RPC
        name = name_from_wire(request)

        async def delete(cell: str) -> Any:  # noqa: ANN401  # of the RPC
            return await self._call(cell, "DeleteNamespace", request, context)

        return await self._places.delete(name, delete)

    async def _search(self, rpc: str, request: Any, context: CallContext) -> Any:  # noqa: ANN401  # of the RPC
        """Serve a request for a bulk operation in the cell that knows it."""
        failure: errors.ProgressorError | None = None
        for cell in self._places.names:
            try:
                return await self._call(cell, rpc, request, context)
            except errors.OperationNotFoundError as error:
                failure = failure or error
            except errors.StorageUnavailableError as error:
                # It may be there.
                failure = error
        assert failure is not None, "there are cells"
        raise failure

    async def _merge(self, rpc: str, request: Any, context: CallContext) -> Any:  # noqa: ANN401  # of the RPC
        """Ask all cells at once; of those that are away, a response has at most the names."""
        task = asyncio.current_task()
        responses: dict[str, Any] = {}
        failures: dict[str, errors.ProgressorError] = {}

        async def ask(cell: str) -> None:
            try:
                with self._places.calling(cell, task):
                    responses[cell] = await self._methods[cell][rpc](request, context)
            except errors.ProgressorError as error:
                failures[cell] = error

        async with asyncio.TaskGroup() as group:
            for cell in self._places.names:
                group.create_task(ask(cell), name=f"{rpc} in {cell}")
        away = [it for it in self._places.names if it in failures]
        for cell in away:
            is_away = isinstance(failures[cell], errors.StorageUnavailableError)
            if not (responses and is_away and rpc in TOLERANT):
                raise failures[cell]
        merged: Any = MERGED[rpc]([responses[it] for it in self._places.names if it in responses])
        if away:
            merged.unavailable_cells.extend(away)
        return merged

    async def _chain(self, rpc: str, request: Any, context: CallContext) -> Any:  # noqa: ANN401  # of the RPC
        """Return a page of one cell, the first that has any; its token names the cell."""
        names = self._places.names
        cell, token = _parted(request.page_token, names)
        for name in names[names.index(cell) :]:
            inner = type(request)()
            inner.CopyFrom(request)
            inner.page_token = token if name == cell else ""
            response = await self._call(name, rpc, inner, context)
            following = names[names.index(name) + 1 :]
            if response.next_page_token:
                response.next_page_token = f"{name}~{response.next_page_token}"
            elif not following:
                return response
            elif _has_items(response):
                response.next_page_token = f"{following[0]}~"
            else:
                continue
            return response
        raise AssertionError("the last cell returns")


def routed(
    places: Places,
    servicers_of: Callable[[Callable[[], Backend], str], tuple[Servicer, ...]],
) -> tuple[Servicer, ...]:
    """Return the services of an engine: those of its only cell, or for each one that routes.

    ``servicers_of`` makes those of a cell, which is named only where there are others.
    """
    if len(places.names) == 1:
        return servicers_of(places.only, "")
    cells = {
        name: servicers_of(functools.partial(places.backend, name), name) for name in places.names
    }
    return tuple(
        Routed(places, dict(zip(cells, own, strict=True)))
        for own in zip(*cells.values(), strict=True)
    )


def _namespace_of(rpc: str, request: Any) -> str:  # noqa: ANN401  # of the RPC
    """Return the namespace that a request is for; empty: none, or all."""
    for place in RULES[rpc].places(request):
        return "" if place == EVERYTHING else str(place)
    return ""


def _parted(token: str, names: Sequence[str]) -> tuple[str, str]:
    if not token:
        return names[0], ""
    cell, found, inner = token.partition("~")
    if not found:
        # That of a replica without cells.
        return names[0], token
    if cell not in names:
        wire.refuse("page_token", "must be a page token that this list returned")
    return cell, inner


def _has_items(response: Message) -> bool:
    return any(field.message_type for field, _ in response.ListFields())
