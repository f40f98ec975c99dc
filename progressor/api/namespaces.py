"""NamespaceService, with the limits documented in namespace_service.proto.

A namespace is read as changes of fields: applied to the defaults, or to what is stored.
"""

import dataclasses
import datetime as dt
import logging
from collections.abc import Callable, Iterable
from typing import Annotated, Any

from progressor import errors
from progressor.api.calls import page_tokens
from progressor.api.calls.page_tokens import Listing
from progressor.api.calls.servicer import Backend, Servicer, reading
from progressor.api.calls.traces import CallContext, caller_of
from progressor.api.calls.validation import (
    NamespaceName,
    at_least_0,
    check_namespace_name,
    check_own_namespace,
    text_of,
)
from progressor.domain.access.rights import Right
from progressor.domain.processes.namespace import (
    PAYLOAD_BYTES_CEILING,
    TURN_CEILING,
    HistoryMode,
    Namespace,
    is_target,
)
from progressor.domain.processes.policy import RetryPolicy
from progressor.domain.processes.task import TaskType
from progressor.domain.quotas.quotas import RATE_MAX, SIZE_MAX, Quotas
from progressor.settings.cells import MAIN
from progressor.v1 import namespace_service_pb2 as pb
from progressor.wire import fields as wire
from progressor.wire.processes import RETRY_POLICY, check_not_negative, retry_policy_from_wire
from progressor.wire.shapes import UNSENT, Field, Shape, Violations, between

TARGETS_MAX = 32
WORKERS_MAX = 100_000
HISTORY_LAST_MAX = 100_000
PATIENCE_MAX = dt.timedelta(days=30)
EXTENDED_MAX = dt.timedelta(days=7)
REASON_BYTES_MAX = 1024
AUTHOR_BYTES_MAX = 256

_COUNT_MAX = 2**31 - 1
_RETRIED_TYPES = {it.value: it for it in TaskType if it is not TaskType.REMOVE}
_SET_BY_THE_ENGINE = ("created_at", "updated_at", "revision", "pause", "cell")
_CHANGEABLE = tuple(
    it.name for it in pb.Namespace.DESCRIPTOR.fields if it.name not in {"name", *_SET_BY_THE_ENGINE}
)

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """An UpdateNamespace: what to change of which namespace; revision 0: whatever it is at."""

    name: str
    change: Callable[[Namespace], Namespace]
    expected_revision: int
    credentials: str = ""
    """Those that it sets; "": none."""


def _check_reason(reason: str, field: str) -> None:
    if not reason.strip():
        wire.refuse(field, "must not be empty")
    text_of(REASON_BYTES_MAX)(reason, field)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pausing:
    """A PauseNamespace."""

    name: NamespaceName
    reason: Annotated[str, _check_reason]
    author: Annotated[str, text_of(AUTHOR_BYTES_MAX)]
    refuse_requests: bool


def _check_targets(targets: tuple[str, ...], field: str) -> None:
    violations = Violations()
    if not 1 <= len(targets) <= TARGETS_MAX:
        violations.add(field, f"must have 1 to {TARGETS_MAX} items, got {len(targets)}")
    for index, target in enumerate(targets[:TARGETS_MAX]):
        if not is_target(target):
            violations.add(
                f"{field}[{index}]", f"must be host:port or unix:/path, got {wire.shown(target)}"
            )
    violations.raise_any()


def _check_credentials(name: str, field: str) -> None:
    if name:
        check_namespace_name(name, field)


def _policies_of(message: pb.Namespace, path: str, _context: object) -> dict[TaskType, RetryPolicy]:
    field, violations = f"{path}retry_policies", Violations()
    policies: dict[TaskType, RetryPolicy] = {}
    for name in sorted(message.retry_policies):
        task_type = _RETRIED_TYPES.get(name)
        if task_type is None:
            known = ", ".join(_RETRIED_TYPES)
            violations.add(field, f"unknown task type {wire.shown(name)}; must be one of {known}")
            continue
        policy = violations.attempt(
            retry_policy_from_wire, message.retry_policies[name], f"{field}[{name!r}]"
        )
        policies[task_type] = policy or RetryPolicy()
    violations.raise_any()
    return policies


def _history_of(message: pb.Namespace) -> dict[str, Any]:
    """Return the two fields that store the history policy."""
    policy, field = message.history, "namespace.history"
    mode = policy.WhichOneof("mode")
    if mode == "last":
        between(1, HISTORY_LAST_MAX)(policy.last, f"{field}.last")
        return {"history_mode": HistoryMode.LAST, "history_last": policy.last}
    if mode is not None and not getattr(policy, mode):
        wire.refuse(f"{field}.{mode}", "must be true where it is given")
    return {"history_mode": HistoryMode(mode or "all"), "history_last": 0}


QUOTAS = Shape(
    Quotas,
    pb.Quotas,
    starts_per_second=between(0, RATE_MAX),
    calls_per_second=between(0, RATE_MAX),
    timers_per_second=between(0, RATE_MAX),
    open_processes=between(0, SIZE_MAX),
    bytes_per_second=between(0, SIZE_MAX),
)

NAMESPACE = Shape(
    Namespace,
    pb.Namespace,
    processor_targets=_check_targets,
    step_timeout=Field(
        check=between(wire.STEP_TIMEOUT_MIN, wire.STEP_TIMEOUT_MAX), zero_is_default=True
    ),
    retry_policy=RETRY_POLICY,
    retry_policies=Field(shape=RETRY_POLICY, read=_policies_of),
    worker_count_max=between(1, WORKERS_MAX),
    history_mode=UNSENT,
    history_last=UNSENT,
    finished_process_retention=check_not_negative,
    task_retention=check_not_negative,
    payload_bytes_max=between(1, PAYLOAD_BYTES_CEILING),
    waiting_callers_max=between(1, _COUNT_MAX),
    unreachable_patience=between(wire.STEP_TIMEOUT_MIN, PATIENCE_MAX),
    step_timeout_max=Field(
        check=between(wire.STEP_TIMEOUT_MIN, EXTENDED_MAX), zero_is_default=True
    ),
    processor_credentials=_check_credentials,
    turn_max=between(1, TURN_CEILING),
    quotas=QUOTAS,
)


def create_from_wire(message: pb.CreateNamespaceRequest) -> Namespace:
    """Return the namespace to create, with defaults for what was left out."""
    violations = Violations()
    name = message.namespace.name
    violations.attempt(check_own_namespace, name, "namespace.name")
    change = _change_of(message.namespace, _CHANGEABLE, violations)
    violations.raise_any()
    return change(Namespace(name=name, processor_targets=(), cell=message.namespace.cell))


def update_from_wire(message: pb.UpdateNamespaceRequest) -> Update:
    """Return the changes that the mask names, or without a mask those of the fields given."""
    violations = Violations()
    name = message.namespace.name
    violations.attempt(check_own_namespace, name, "namespace.name")
    violations.attempt(at_least_0, message.expected_revision, "expected_revision")
    paths = list(message.update_mask.paths)
    if paths:
        _check_mask(paths, violations)
    else:
        paths = [field.name for field, _ in message.namespace.ListFields()]
    change = _change_of(message.namespace, paths, violations)
    violations.raise_any()
    credentials = message.namespace.processor_credentials
    return Update(
        name=name,
        change=change,
        expected_revision=message.expected_revision,
        credentials=credentials if "processor_credentials" in paths else "",
    )


def name_from_wire(
    message: pb.GetNamespaceRequest | pb.DeleteNamespaceRequest | pb.ResumeNamespaceRequest,
) -> str:
    is_deletion = isinstance(message, pb.DeleteNamespaceRequest)
    (check_own_namespace if is_deletion else check_namespace_name)(message.name, "name")
    return message.name


pausing_from_wire = Shape(Pausing, pb.PauseNamespaceRequest).read
list_from_wire = page_tokens.NAMESPACES.listing(pb.ListNamespacesRequest).read


def namespace_to_wire(namespace: Namespace) -> pb.Namespace:
    """Return a namespace as a message, every default written out."""
    message, mode = NAMESPACE.message(namespace), namespace.history_mode
    setattr(
        message.history, mode.value, namespace.history_last if mode is HistoryMode.LAST else True
    )
    return message


def page_to_wire(namespaces: tuple[Namespace, ...], *, page_size: int) -> pb.ListNamespacesResponse:
    page, token = page_tokens.NAMESPACES.page(namespaces, page_size, lambda it: it.name)
    return pb.ListNamespacesResponse(namespaces=map(namespace_to_wire, page), next_page_token=token)


def _check_mask(paths: Iterable[str], violations: Violations) -> None:
    for index, path in enumerate(paths):
        field = f"update_mask.paths[{index}]"
        if path in _SET_BY_THE_ENGINE:
            violations.add(field, f"must not name {path}, which the engine sets")
        elif path not in _CHANGEABLE and path != "name":
            violations.add(field, f"unknown field {wire.shown(path)} of Namespace")


def _change_of(
    message: pb.Namespace, paths: Iterable[str], violations: Violations
) -> Callable[[Namespace], Namespace]:
    """Return what the named fields change; computed now, so that errors show before any read."""
    names = [path for path in dict.fromkeys(paths) if path in _CHANGEABLE]
    plain = [name for name in names if name != "history"]
    values = violations.attempt(NAMESPACE.read_fields, message, plain, "namespace.") or {}
    if "history" in names:
        values |= violations.attempt(_history_of, message) or {}
    return lambda current: dataclasses.replace(current, **values)


class NamespaceServicer(Servicer):
    """What operators do with namespaces."""

    service = pb.DESCRIPTOR.services_by_name["NamespaceService"]

    def __init__(self, backend: Callable[[], Backend], *, cell: str = "") -> None:
        """Serve the namespaces of a cell; "": the only one, which they do not name."""
        super().__init__(backend)
        self._cell = cell

    def _to_wire(self, namespace: Namespace) -> pb.Namespace:
        return namespace_to_wire(dataclasses.replace(namespace, cell=self._cell))

    def check_creation(self, namespace: Namespace) -> None:
        """Refuse a namespace that this replica would not create."""
        self._check_known(namespace.processor_credentials)

    def _check_known(self, credentials: str) -> None:
        """Refuse credentials that this replica does not have; the others should have the same."""
        known = self._backend().processor_credentials
        if credentials and credentials not in known:
            names = f"one of {', '.join(sorted(known))}" if known else "empty"
            wire.refuse(
                "namespace.processor_credentials",
                f"must be {names}, as the configuration of this replica has it, "
                f"got {wire.shown(credentials)}",
            )

    @reading(create_from_wire)
    async def create_namespace(
        self, namespace: Namespace, _: CallContext
    ) -> pb.CreateNamespaceResponse:
        self.check_creation(namespace)
        here = self._cell or MAIN
        if namespace.cell not in {"", here}:
            wire.refuse("namespace.cell", f"must be {here}, got {wire.shown(namespace.cell)}")
        created = await self._backend().namespaces.create(namespace)
        _log.info("namespace created", extra={"namespace": created.name})
        return pb.CreateNamespaceResponse(namespace=self._to_wire(created))

    @reading(update_from_wire)
    async def update_namespace(self, update: Update, _: CallContext) -> pb.UpdateNamespaceResponse:
        self._check_known(update.credentials)
        updated = await self._backend().namespaces.update(
            update.name, update.change, expected_revision=update.expected_revision
        )
        facts = {"namespace": updated.name, "revision": updated.revision}
        _log.info("namespace changed", extra=facts)
        return pb.UpdateNamespaceResponse(namespace=self._to_wire(updated))

    @reading(name_from_wire)
    async def get_namespace(self, name: str, _: CallContext) -> pb.GetNamespaceResponse:
        found = await self._backend().namespaces.get(name)
        return pb.GetNamespaceResponse(namespace=self._to_wire(found))

    @reading(list_from_wire)
    async def list_namespaces(
        self, asked: Listing[str], context: CallContext
    ) -> pb.ListNamespacesResponse:
        caller, seen = caller_of(context), list[Namespace]()
        after, is_last = asked.after, False
        # What is not seen must not show in the token of a page either.
        while not is_last and len(seen) <= asked.limit:
            found = await self._backend().namespaces.list(after=after, limit=asked.limit + 1)
            seen.extend(it for it in found if caller.may(Right.READ, it.name))
            is_last = len(found) <= asked.limit
            after = found[-1].name if found else after
        page = tuple(dataclasses.replace(it, cell=self._cell) for it in seen)
        return page_to_wire(page, page_size=asked.limit)

    @reading(name_from_wire)
    async def delete_namespace(self, name: str, _: CallContext) -> pb.DeleteNamespaceResponse:
        await self._backend().namespaces.delete(name)
        _log.info("namespace deleted", extra={"namespace": name})
        return pb.DeleteNamespaceResponse()

    @reading(pausing_from_wire)
    async def pause_namespace(
        self, asked: Pausing, context: CallContext
    ) -> pb.PauseNamespaceResponse:
        author = caller_of(context).principal.name or asked.author
        found = await self._backend().namespaces.pause(
            [asked.name],
            reason=asked.reason,
            author=author,
            refuses_requests=asked.refuse_requests,
        )
        if not found:
            raise errors.NamespaceNotFoundError(asked.name)
        _log.info("namespace paused", extra={"namespace": asked.name, "author": author})
        return pb.PauseNamespaceResponse(namespace=self._to_wire(found[0]))

    @reading(name_from_wire)
    async def resume_namespace(self, name: str, _: CallContext) -> pb.ResumeNamespaceResponse:
        resumed = await self._backend().namespaces.resume(name)
        _log.info("namespace resumed", extra={"namespace": name})
        return pb.ResumeNamespaceResponse(namespace=self._to_wire(resumed))
