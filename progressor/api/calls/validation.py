"""The checks that requests share, and the collector that reports all violations at once."""

from collections.abc import Callable
from typing import Annotated, Any

from progressor.domain.processes.namespace import is_namespace_name
from progressor.domain.processes.process import ProcessKey, process_key
from progressor.wire import fields as wire
from progressor.wire.fields import shown
from progressor.wire.processes import check_not_reserved
from progressor.wire.shapes import Check, Field, Violations, refuse_all

PAGE_SIZE_MAX = 1000
PAGE_SIZE_DEFAULT = 100


def check_namespace_name(name: str, field: str) -> None:
    if not is_namespace_name(name):
        wire.refuse(field, f"must be 1 to 64 characters of [a-z0-9._-], got {shown(name)}")


def check_id(value: str, field: str) -> None:
    """Refuse an id that is not 1 .. 256 bytes without control characters."""
    if not _is_plain(value):
        refuse_all(field, wire.id_faults(value))


def _is_plain(value: str) -> bool:
    """Return whether a quick look is enough to see that this is an id."""
    return value.isascii() and value.isprintable() and 0 < len(value) <= wire.ID_BYTES_MAX


def read_key(id_field: str = "process_id") -> Callable[[Any, str, Any], ProcessKey]:
    """Return what reads the key of a process, whose id is in the field of that name."""

    def read(message: Any, path: str, _context: object) -> ProcessKey:  # noqa: ANN401  # of many
        namespace, process_id = message.namespace, getattr(message, id_field)
        if is_namespace_name(namespace) and _is_plain(process_id):
            return process_key(namespace, process_id)
        violations = Violations()
        violations.attempt(check_namespace_name, namespace, f"{path}namespace")
        violations.attempt(check_id, process_id, f"{path}{id_field}")
        violations.raise_any()
        return process_key(namespace, process_id)

    return read


def at_least_0(value: int, field: str) -> None:
    if value < 0:
        wire.refuse(field, f"must not be negative, got {value}")


def check_own_namespace(name: str, field: str) -> None:
    """Refuse what is not the name of a namespace that clients may change."""
    check_namespace_name(name, field)
    check_not_reserved(name, field)


NamespaceName = Annotated[str, check_namespace_name]
Id = Annotated[str, check_id]
Key = Annotated[ProcessKey, Field(read=read_key())]
JobKey = Annotated[ProcessKey, Field(read=read_key("job_id"))]
Revision = Annotated[int, at_least_0]
"""Of a request, which expects it; 0: any."""


def read_payload(name: str) -> Field:
    """Return a field of bytes, of which there may be as many as the context says."""

    def read(message: Any, path: str, bytes_max: int) -> bytes:  # noqa: ANN401  # of many
        payload: bytes = getattr(message, name)
        wire.check_payload(payload, f"{path}{name}", bytes_max)
        return payload

    return Field(read=read)


def text_of(bytes_max: int) -> Check:
    """Refuse a text that PostgreSQL cannot store, or that is too long."""

    def check(text: str, field: str) -> None:
        size = len(text.encode())
        faults = [wire.NUL] if "\0" in text else []
        if size > bytes_max:
            faults.append(wire.too_large(size, bytes_max))
        refuse_all(field, faults)

    return check


def _page_size(message: Any, path: str, _context: object) -> int:  # noqa: ANN401  # of many
    value = message.page_size
    if not 0 <= value <= PAGE_SIZE_MAX:
        wire.refuse(f"{path}page_size", f"must be 0 to {PAGE_SIZE_MAX}, got {value}")
    return int(value) or PAGE_SIZE_DEFAULT


PAGE_SIZE = Field(read=_page_size)
PageSize = Annotated[int, PAGE_SIZE]
"""The items of a page, 1 .. 1,000; 0 asks for the default."""
