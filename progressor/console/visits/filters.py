"""The filter of processes in the address of a page."""

import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from progressor import errors
from progressor.console.visits.visit import Ask, Query
from progressor.sdk.client.filters import FilterOptions
from progressor.sdk.codec.wire import WireEnum, object_to_wire
from progressor.sdk.values.processes import ProcessStatus, WaitCause

Member = TypeVar("Member", bound=WireEnum)

_TEXTS = ("failure_id", "failure_reason", "id_prefix")
_INSTANTS = ("created_from", "created_to", "broken_from", "broken_to")

FIELDS = (
    "namespace",
    "status",
    "id_prefix",
    "metadata",
    "failure_id",
    "failure_reason",
    *_INSTANTS,
)
"""The parameters of a filter, as bulk operations take it."""

STATUSES = tuple(ProcessStatus)[1:]
CAUSES = tuple(it for it in WaitCause if it is not WaitCause.UNSPECIFIED)


class Part(NamedTuple):
    """One part of a filter; ``rest`` is the query without it."""

    name: str
    value: str
    rest: Mapping[str, tuple[str, ...]]


def filter_of(ask: Ask) -> FilterOptions:
    """Return the filter in the address of a page.

    Raises:
        InvalidRequestError: A parameter cannot be read; it is named.
    """
    namespace, found = ask.one("namespace"), FilterOptions()
    if namespace:
        found["namespace"] = namespace
    else:
        found["all_namespaces"] = True
    if statuses := ask.query.get("status"):
        found["statuses"] = tuple(_member(ProcessStatus, "status", it) for it in statuses)
    found.update({it: ask.one(it) for it in _TEXTS})  # type: ignore[typeddict-item]  # of these names
    instants = {it: _instant(it, ask.one(it)) for it in _INSTANTS if ask.one(it)}
    found.update(instants)  # type: ignore[typeddict-item]  # as well
    if pairs := ask.query.get("metadata"):
        found["metadata"] = _metadata(pairs)
    return found


def causes_of(ask: Ask) -> tuple[WaitCause, ...]:
    return tuple(_member(WaitCause, "cause", it) for it in ask.query.get("cause", ()))


def query_of(ask: Ask) -> Query:
    """Return the parameters of a page that filter."""
    return {name: ask.query[name] for name in FIELDS if name in ask.query}


def parts_of(ask: Ask) -> Iterator[Part]:
    """Yield each part of the filter of a page."""
    query = {name: ask.query[name] for name in (*FIELDS, "cause") if name in ask.query}
    for name, values in query.items():
        for value in values:
            kept = tuple(it for it in values if it != value)
            yield Part(name, value, {**query, name: kept})


def _member(kind: type[Member], name: str, text: str) -> Member:
    try:
        return kind(text)
    except ValueError as error:
        known = ", ".join(tuple(kind)[1:])
        raise _invalid(name, f"must be one of {known}, got {text!r}") from error


def _instant(name: str, text: str) -> dt.datetime:
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError as error:
        example = "2026-01-31T12:00:00Z"
        raise _invalid(name, f"must be an instant such as {example}, got {text!r}") from error
    return found if found.tzinfo else found.replace(tzinfo=dt.UTC)


def _metadata(pairs: Iterable[str]) -> dict[str, object]:
    found = dict(map(_pair, pairs))
    try:
        object_to_wire(found)
    except ValueError as error:
        raise _invalid("metadata", str(error)) from error
    return found


def _pair(text: str) -> tuple[str, object]:
    key, equals, value = text.partition("=")
    if not (key.strip() and equals):
        raise _invalid("metadata", f"must be key=value, got {text!r}")
    try:
        return key.strip(), msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return key.strip(), value.strip()


def _invalid(name: str, description: str) -> errors.InvalidRequestError:
    return errors.InvalidRequestError(errors.FieldViolation(name, description))
