"""A visit: what one request to the console knows of its visitor."""

import dataclasses
import datetime as dt
from collections.abc import Mapping
from urllib.parse import quote, urlencode

from progressor import errors
from progressor.console.options import Options
from progressor.console.visits.meters import Meters
from progressor.console.words.words import Words
from progressor.domain.access.answers import Identity
from progressor.domain.access.rights import EVERYTHING, Permissions, Right
from progressor.sdk.client.client import Client

Query = Mapping[str, tuple[str, ...]]
"""The parameters of an address behind its ``?``, each with all of its values."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What a page is loaded by, whatever the visitor's language: equal ones show the same."""

    client: Client
    identity: Identity
    options: Options
    meters: Meters
    place: Mapping[str, str]
    query: Query

    def one(self, name: str) -> str:
        """Return the value of a parameter; "" without it."""
        return next(iter(self.query.get(name, ())), "")

    @property
    def name(self) -> str:
        """The id or key of the object that the page is about, or its namespace."""
        if "name" in self.place:
            return self.place["name"] or self.one("id")
        return self.one("id") or self.place.get("namespace", "")

    def instant(self, name: str) -> dt.datetime | None:
        """Return the instant in a parameter, by UTC if it names no zone; None without one.

        Raises:
            InvalidRequestError: It is none.
        """
        text = self.one(name)
        if not text:
            return None
        try:
            found = dt.datetime.fromisoformat(text)
        except ValueError as error:
            wrong = f"must be an instant such as 2026-01-31T12:00:00Z, got {text!r}"
            raise errors.InvalidRequestError(errors.FieldViolation(name, wrong)) from error
        return found if found.tzinfo else found.replace(tzinfo=dt.UTC)

    def may(self, right: Right, namespace: str) -> bool:
        """Return whether the visitor has a right there, so that an action can be offered.

        The engine decides; this only spares the visitor forms that end with a denial.
        """
        if self.options.is_read_only:
            return False
        if not self.identity.is_access_controlled:
            return self.options.allows_actions
        return Permissions(self.identity.bindings).allow(right, namespace)

    def sees(self, right: Right, namespace: str = "") -> bool:
        """Return whether the visitor has a right to read there, "": anywhere."""
        if not self.identity.is_access_controlled:
            return True
        permissions = Permissions(self.identity.bindings)
        if namespace:
            return permissions.allow(right, namespace)
        return permissions.any_binding_for(right) is not None

    def sees_payloads(self, namespace: str) -> bool:
        """Return whether the engine shows the visitor the payloads there; others are empty."""
        if not self.identity.is_access_controlled:
            return True
        return Permissions(self.identity.bindings).allow(Right.READ_PAYLOADS, namespace)

    def may_open(self, section: str) -> bool:
        """Return whether the menu offers a section: not those that the engine would deny."""
        match section:
            case "audit":
                return self.sees(Right.ADMINISTER)
            case "doctor":
                return self.sees(Right.OPERATE, EVERYTHING)
            case _:
                return True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How a visitor wishes to see pages."""

    words: Words
    theme: str


@dataclasses.dataclass(frozen=True, slots=True)
class Links:
    """The addresses of pages and of what they need."""

    base: str

    def to(self, path: str, query: Mapping[str, object] | None = None) -> str:
        """Return the address of a page; parameters that are empty are left out."""
        given = {name: it for name, it in (query or {}).items() if it not in ("", None, (), [])}
        sign = "&" if "?" in path else "?"
        behind = f"{sign}{urlencode(given, doseq=True)}" if given else ""
        return f"{self.base}{path}{behind}"

    def namespace(self, namespace: str) -> str:
        return self.to(f"/namespaces/{quote(namespace, safe='')}")

    def process(self, namespace: str, process_id: str) -> str:
        return self._object("processes", namespace, process_id)

    def gate(self, namespace: str, gate: str) -> str:
        return self._object("gates", namespace, gate)

    def job(self, namespace: str, job_id: str) -> str:
        return self._object("jobs", namespace, job_id)

    def schedule(self, namespace: str, schedule_id: str) -> str:
        return self._object("schedules", namespace, schedule_id)

    def bulk(self, operation_id: str) -> str:
        return self.to(f"/bulk/{quote(operation_id, safe='')}")

    def payload(self, namespace: str, process_id: str, which: Mapping[str, object]) -> str:
        """Return where a payload of a process can be downloaded whole."""
        where = {"namespace": namespace, "process": process_id}
        return self.to("/payload", {**where, **which})

    def _object(self, kind: str, namespace: str, name: str) -> str:
        # A browser resolves these two as parts of a path, however they are escaped.
        if name in {".", ".."}:
            return self.to(f"/{kind}/{quote(namespace, safe='')}/", {"id": name})
        return self.to(f"/{kind}/{quote(namespace, safe='')}/{quote(name, safe='')}")
