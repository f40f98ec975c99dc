"""BulkService."""

import dataclasses
import datetime as dt
import logging
from collections.abc import Mapping
from typing import Annotated, Any

from progressor.api.calls import page_tokens
from progressor.api.calls.filters import FILTER
from progressor.api.calls.servicer import Servicer, reading
from progressor.api.calls.traces import CallContext, caller_of, trace_context_of
from progressor.api.calls.validation import Id, PageSize, check_id, read_payload, text_of
from progressor.api.guard.rules import RULES
from progressor.domain.access.rights import Right
from progressor.domain.processes.namespace import PAYLOAD_BYTES_CEILING
from progressor.domain.processes.process import ProcessStatus
from progressor.domain.views.bulk import (
    FAILED_WINDOW_DEFAULT,
    FAILED_WINDOW_MAX,
    OPERATIONS,
    RATE_DEFAULT,
    RATE_MAX,
    TAKEN_BY,
    WITH_ARGS,
    BulkItem,
    BulkKind,
    BulkOperation,
    BulkRequest,
    applicable,
)
from progressor.domain.views.filter import ProcessFilter
from progressor.domain.views.process import ProcessQuery
from progressor.v1 import bulk_service_pb2 as pb
from progressor.v1 import types_pb2
from progressor.wire import fields as wire
from progressor.wire.processes import PROCESS_STATUS_TO_WIRE, fill_process
from progressor.wire.shapes import UNSENT, Field, Shape, Violations, between, enum_numbers

REASON_BYTES_MAX = 1024
AUTHOR_BYTES_MAX = 256

SAMPLE_SIZE = 10
PREVIEW_EXACT_MAX = 100_000
"""Processes that a preview examines one by one; it may take longer than a count."""

_log = logging.getLogger(__name__)

_KINDS = {it: kind for kind, it in enum_numbers(BulkKind, pb.BulkKind.DESCRIPTOR).items()}


def _kind_of(message: Any, path: str, _context: object) -> BulkKind:  # noqa: ANN401  # of two
    kind = _KINDS.get(message.kind)
    if kind is None:
        wire.refuse(f"{path}kind", f"must be given and known, got {message.kind}")
    return kind


def _filter_of(message: Any, path: str, _context: object) -> ProcessFilter:  # noqa: ANN401  # of two
    return FILTER.read(message.filter, f"{path}filter.")


def _rate_of(message: pb.StartBulkRequest, path: str, _context: object) -> int | None:
    if message.rate_unlimited:
        return None
    between(0, RATE_MAX)(message.rate_max, f"{path}rate_max")
    return message.rate_max or RATE_DEFAULT


def _window_of(message: pb.StartBulkRequest, path: str, _context: object) -> int:
    between(0, FAILED_WINDOW_MAX)(message.failed_window, f"{path}failed_window")
    return message.failed_window or FAILED_WINDOW_DEFAULT


def _check(values: Mapping[str, Any], path: str, _context: object) -> None:
    """Refuse what a kind does not take; `values` may lack fields that were refused before."""
    violations = Violations()
    kind, processes = values.get("kind"), values.get("filter")
    if kind is not None and values.get("args") and kind not in WITH_ARGS:
        violations.add(f"{path}args", f"must be empty for {kind}")
    if kind is BulkKind.TERMINATE and not values.get("reason", "-").strip():
        violations.add(f"{path}reason", "must not be empty for terminate")
    if kind is not None and processes is not None and TAKEN_BY[kind]:
        others = ", ".join(it for it in processes.statuses if it not in TAKEN_BY[kind])
        if others:
            text = f"must be {' or '.join(TAKEN_BY[kind])} for {kind}, got {others}"
            violations.add(f"{path}filter.statuses", text)
    if processes is not None and processes.namespace == OPERATIONS:
        violations.add(f"{path}filter.namespace", f"must not be {OPERATIONS}")
    violations.raise_any()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    kind: Annotated[BulkKind, Field(read=_kind_of)]
    filter: Annotated[ProcessFilter, Field(read=_filter_of)]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OperationKey:
    operation_id: Id


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Get(OperationKey):
    count_outcomes: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stop(OperationKey):
    reason: Annotated[str, text_of(REASON_BYTES_MAX)]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Results(OperationKey):
    failed: bool
    after: Annotated[int, page_tokens.BULK_ITEMS.field]
    limit: PageSize


def _check_stop(values: Mapping[str, Any], path: str, _context: object) -> None:
    if not values.get("reason", "-").strip():
        wire.refuse(f"{path}reason", "must not be empty")


preview_from_wire = Shape(Preview, pb.PreviewBulkRequest, _check).read
start_from_wire = Shape(
    BulkRequest,
    pb.StartBulkRequest,
    _check,
    operation_id=check_id,
    kind=Field(read=_kind_of),
    filter=Field(read=_filter_of),
    args=read_payload("args"),
    reason=text_of(REASON_BYTES_MAX),
    author=text_of(AUTHOR_BYTES_MAX),
    rate_max=Field(read=_rate_of),
    failed_share_max=between(0, 1),
    failed_window=Field(read=_window_of),
).read
get_from_wire = Shape(Get, pb.GetBulkRequest).read
stop_from_wire = Shape(Stop, pb.StopBulkRequest, _check_stop).read
list_from_wire = page_tokens.BULKS.listing(pb.ListBulksRequest).read
results_from_wire = Shape(Results, pb.ListBulkResultsRequest).read


def _write_statuses(
    message: types_pb2.ProcessFilter, statuses: tuple[ProcessStatus, ...], _context: object
) -> None:
    message.statuses.extend(PROCESS_STATUS_TO_WIRE[it] for it in statuses)


operation_to_wire = Shape(
    BulkOperation,
    pb.BulkOperation,
    filter=Shape(
        ProcessFilter,
        types_pb2.ProcessFilter,
        statuses=Field(write=_write_statuses),
        seen=UNSENT,
    ),
    phase=UNSENT,
).message
_item_to_wire = Shape(BulkItem, pb.BulkItem).message


def _key_of(bulk: BulkOperation) -> tuple[dt.datetime, str]:
    return bulk.created_at, bulk.operation_id


class BulkServicer(Servicer):
    """What operators do with many processes at once."""

    service = pb.DESCRIPTOR.services_by_name["BulkService"]

    @reading(preview_from_wire)
    async def preview_bulk(self, asked: Preview, _: CallContext) -> pb.PreviewBulkResponse:
        backend, processes = self._backend(), applicable(asked.kind, asked.filter)
        await self._check_namespace(processes)
        counted = await backend.counts.count(processes, exact_max=PREVIEW_EXACT_MAX)
        query = ProcessQuery(filter=processes, page_size=SAMPLE_SIZE)
        response = pb.PreviewBulkResponse(
            matched_count=counted.count, is_estimate=counted.is_estimate
        )
        for process in await backend.processes.list(query):
            fill_process(response.sample.add(), process)
        return response

    async def start_bulk(
        self, message: pb.StartBulkRequest, context: CallContext
    ) -> pb.StartBulkResponse:
        request = start_from_wire(message, context=PAYLOAD_BYTES_CEILING)
        if author := caller_of(context).principal.name:
            request = dataclasses.replace(request, author=author)
        await self._check_namespace(request.filter)
        await self._check_args(request)
        bulk, is_known = await self._backend().bulk_control.start(
            request, trace_context_of(context)
        )
        return pb.StartBulkResponse(operation=operation_to_wire(bulk), deduplicated=is_known)

    @reading(get_from_wire)
    async def get_bulk(self, asked: Get, context: CallContext) -> pb.GetBulkResponse:
        bulks = self._backend().bulk_control.bulks
        bulk = await self._operation("GetBulk", asked.operation_id, context)
        if asked.count_outcomes:
            bulk = await bulks.count_outcomes(bulk)
        return pb.GetBulkResponse(operation=operation_to_wire(bulk))

    @reading(stop_from_wire)
    async def stop_bulk(self, asked: Stop, context: CallContext) -> pb.StopBulkResponse:
        await self._operation("StopBulk", asked.operation_id, context)
        bulk = await self._backend().bulk_control.stop(asked.operation_id, asked.reason)
        _log.info("bulk operation stopped", extra={"operation_id": asked.operation_id})
        return pb.StopBulkResponse(operation=operation_to_wire(bulk))

    @reading(list_from_wire)
    async def list_bulks(
        self, asked: page_tokens.Listing[Any], context: CallContext
    ) -> pb.ListBulksResponse:
        caller, seen = caller_of(context), list[BulkOperation]()
        after, is_last = asked.after, False
        # What is not seen must not show in the token of a page either.
        while not is_last and len(seen) <= asked.limit:
            found = await self._backend().bulk_control.bulks.list(
                after=after, limit=asked.limit + 1
            )
            seen.extend(it for it in found if caller.may(Right.READ, it.filter.namespace))
            is_last = len(found) <= asked.limit
            after = _key_of(found[-1]) if found else after
        page, token = page_tokens.BULKS.page(seen, asked.limit, _key_of)
        return pb.ListBulksResponse(operations=map(operation_to_wire, page), next_page_token=token)

    @reading(results_from_wire)
    async def list_bulk_results(
        self, asked: Results, context: CallContext
    ) -> pb.ListBulkResultsResponse:
        await self._operation("ListBulkResults", asked.operation_id, context)
        found = await self._backend().bulk_control.bulks.items(
            asked.operation_id, failed=asked.failed, after=asked.after, limit=asked.limit + 1
        )
        page, token = page_tokens.BULK_ITEMS.page(found, asked.limit, lambda it: it.item)
        return pb.ListBulkResultsResponse(results=map(_item_to_wire, page), next_page_token=token)

    async def _operation(self, rpc: str, operation_id: str, context: CallContext) -> BulkOperation:
        """Return an operation, if the caller has the right to it where its processes are."""
        bulk = await self._backend().bulk_control.bulks.get(operation_id)
        right = RULES[rpc].right
        assert right is not None, "operations are not for everybody"
        caller_of(context).require(rpc, right, bulk.filter.namespace)
        return bulk

    async def _check_namespace(self, processes: ProcessFilter) -> None:
        if processes.namespace:
            await self._backend().namespaces.lookup(processes.namespace)

    async def _check_args(self, request: BulkRequest) -> None:
        """Refuse args that a namespace of the processes would refuse of a single request."""
        namespaces = self._backend().namespaces
        name = request.filter.namespace
        reached = [await namespaces.lookup(name)] if name else namespaces.known()
        for namespace in reached:
            bytes_max = namespace.payload_bytes_max
            if len(request.args) > bytes_max:
                text = (
                    f"{wire.too_large(len(request.args), bytes_max)}, in namespace {namespace.name}"
                )
                wire.refuse("args", text)
