"""Audit entries of requests: who, from where, what and why; and those of denials and failures.

A request that changes something has its entry written by the statement that changes it; here it is
composed. ``rules`` say which requests these are.
"""

import re
from collections.abc import Mapping
from typing import Any

from progressor import access_errors, errors
from progressor.api.guard.guard import ANYBODY, Caller
from progressor.api.guard.rules import CALLS, CHANGES, RULES
from progressor.domain.access.audit import ANONYMOUS, DONE
from progressor.domain.access.rights import EVERYTHING, Binding
from progressor.storage.access.audit import AuditNotes, entry_of
from progressor.telemetry.logs import fields as log_fields

_OBJECTS = (
    "process_id", "job_id", "schedule_id", "gate", "operation_id", "token_id", "name",
)  # fmt: skip
_IN_MEMORY = frozenset({"SetLogLevel"})
"""What changes nothing in PostgreSQL. Its entry is noted: it is lost only with the change."""

DENIALS = (access_errors.UnauthenticatedError, access_errors.PermissionDeniedError)


class Recorder:
    """Composes entries, and notes those that no transaction writes."""

    def __init__(self, notes: AuditNotes, *, calls: bool) -> None:
        """Record what changes something, and, if so wished, also starts, ``calls`` and notifies."""
        self._notes = notes
        self.rpcs = CHANGES | CALLS if calls else CHANGES

    def entry(
        self,
        rpc: str,
        request: Any,  # noqa: ANN401  # of the RPC
        *,
        caller: Caller | None,
        peer: str,
        trace: Mapping[str, str],
    ) -> str:
        """Return the entry of a request; no caller: it has none that is known."""
        namespace, principal, credential, binding = _namespace_of(rpc, request), "", "", ""
        if caller is ANYBODY:
            principal = ANONYMOUS
        elif caller is not None:
            principal, credential = caller.principal.name, caller.principal.credential
            binding = _allowed_by(rpc, caller, namespace)
        return entry_of(
            rpc,
            principal=principal,
            credential=credential,
            binding=binding,
            peer=peer,
            namespace=namespace,
            object_id=_object_of(request),
            reason=_text(request, "reason") or _text(request, "note"),
            trace_id=log_fields.of_trace(trace).get("trace_id", ""),
        )

    def note_done(self, rpc: str, entry: str) -> None:
        """Note a request that has done what it should, if nothing else has its entry."""
        if rpc in _IN_MEMORY:
            self._notes.add(entry, DONE)

    def note_failed(self, entry: str, error: Exception) -> None:
        """Note a request that was denied or has failed."""
        found = error.reason if isinstance(error, errors.ProgressorError) else "INTERNAL"
        self._notes.add(entry, found)


def _namespace_of(rpc: str, request: Any) -> str:  # noqa: ANN401  # of the RPC
    place = next(iter(RULES[rpc].places(request)), EVERYTHING)
    return "" if place == EVERYTHING else place


def _object_of(request: Any) -> str:  # noqa: ANN401  # of the RPC
    binding = getattr(request, "binding", None)
    if binding is not None:
        return f"{binding.principal} {_enum(binding, 'role')} {binding.namespace}"
    if hasattr(request, "level"):
        return _enum(request, "level")
    described = getattr(request, "namespace", None)
    if described is not None and not isinstance(described, str):
        return _text(described, "name")
    return next((text for name in _OBJECTS if (text := _text(request, name))), "")


def _text(message: Any, field: str) -> str:  # noqa: ANN401  # any message
    return str(getattr(message, field, ""))


def _enum(message: Any, field: str) -> str:  # noqa: ANN401  # any message
    """Return the member of an enum field, without the prefix that all members have."""
    members = message.DESCRIPTOR.fields_by_name[field].enum_type
    prefix = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", members.name).upper()
    found = members.values_by_number.get(getattr(message, field))
    return "" if found is None else str(found.name.removeprefix(f"{prefix}_").lower())


def _allowed_by(rpc: str, caller: Caller, namespace: str) -> str:
    right = RULES[rpc].right
    if right is None:
        return ""
    found = caller.permissions.binding_for(right, namespace or EVERYTHING)
    if found is None and not namespace:
        found = caller.permissions.any_binding_for(right)
    return "" if found is None else _shown(found)


def _shown(binding: Binding) -> str:
    return f"{binding.role} in {binding.namespace} for {binding.principal}"
