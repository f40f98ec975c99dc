"""Rights and roles, and what the bindings of a principal allow.

A binding gives a principal a role in the namespaces that a pattern matches. A pattern for
namespaces or principals is a name, a prefix followed by ``*``, or ``*`` alone. Requests that
concern no namespace (replicas, access itself) need a role in ``*``.
"""

import dataclasses
import datetime as dt
import enum
from collections.abc import Iterable, Mapping
from types import MappingProxyType

EVERYTHING = "*"
"""The pattern that matches every name."""

_OWN = "progressor."
"""The prefix of the engine's own namespaces."""

_KINDS = ("token:", "cert:", "user:", "group:")
"""How the names of principals begin."""

PRINCIPAL_BYTES_MAX = 256

BINDINGS_MAX = 10_000
TOKENS_MAX = 10_000
"""Limits, because each replica keeps all bindings and valid tokens in memory."""

_PRINCIPALS_MAX = 10_000
"""The number of principals whose permissions are cached."""


class Right(enum.StrEnum):
    """A right that a request may need."""

    READ = "read"
    READ_PAYLOADS = "read_payloads"
    CALL = "call"
    STEP = "step"
    OPERATE = "operate"
    ADMINISTER = "administer"


class Role(enum.StrEnum):
    """A set of rights that a binding gives."""

    READER = "reader"
    PAYLOAD_READER = "payload_reader"
    CALLER = "caller"
    PROCESSOR = "processor"
    OPERATOR = "operator"
    ADMIN = "admin"


ROLES: Mapping[Role, frozenset[Right]] = MappingProxyType(
    {
        Role.READER: frozenset({Right.READ}),
        Role.PAYLOAD_READER: frozenset({Right.READ, Right.READ_PAYLOADS}),
        Role.CALLER: frozenset({Right.CALL}),
        # Not included in caller: the token of a lease is a number that others can guess.
        Role.PROCESSOR: frozenset({Right.STEP}),
        Role.OPERATOR: frozenset({Right.READ, Right.OPERATE}),
        Role.ADMIN: frozenset({Right.READ, Right.OPERATE, Right.ADMINISTER}),
    }
)
"""The rights of each role. Payloads are business data, which operators do not need."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """Gives a role to matching principals in matching namespaces; both are patterns."""

    principal: str
    role: Role
    namespace: str
    created_at: dt.datetime | None = None
    created_by: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The identity of a caller: ``token:NAME``, ``cert:NAME`` or ``user:ISSUER/NAME``.

    ``groups``: additional names to which bindings apply; for a user, ``group:ISSUER/NAME``.
    ``credential``: the id of its API token, the jti or hash of its identity token, or the
    fingerprint of its certificate.
    """

    name: str
    groups: tuple[str, ...] = ()
    credential: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.groups)


def principal_fault(pattern: str) -> str:
    """Return what is wrong with a pattern of principals; "" for nothing."""
    if pattern != EVERYTHING and not pattern.startswith(_KINDS):
        return f"must be * or begin with {', '.join(_KINDS[:-1])} or {_KINDS[-1]}"
    return "may have a * only at its end" if "*" in pattern[:-1] else ""


def matches(pattern: str, name: str) -> bool:
    """Return whether a pattern matches a name."""
    return name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern


class Permissions:
    """The rights that a set of bindings gives."""

    __slots__ = ("_bindings",)

    def __init__(self, bindings: Iterable[Binding]) -> None:
        found: dict[Right, list[Binding]] = {right: [] for right in Right}
        for binding in bindings:
            for right in ROLES[binding.role]:
                found[right].append(binding)
        self._bindings = found

    def allow(self, right: Right, namespace: str) -> bool:
        """Return whether a binding gives the right in a namespace; `EVERYTHING`: in all."""
        return self.binding_for(right, namespace) is not None

    def binding_for(self, right: Right, namespace: str) -> Binding | None:
        """Return a binding that gives the right in a namespace; None if none does.

        A prefix pattern matches the engine's own namespaces only if it begins like them, because
        their processes may act on any namespace.
        """
        for binding in self._bindings[right]:
            pattern = binding.namespace
            if pattern == EVERYTHING or (
                namespace != EVERYTHING
                and matches(pattern, namespace)
                and (pattern.startswith(_OWN) or not namespace.startswith(_OWN))
            ):
                return binding
        return None

    def patterns_of(self, right: Right) -> tuple[str, ...]:
        """Return the patterns of the namespaces in which the right is given."""
        return tuple(dict.fromkeys(binding.namespace for binding in self._bindings[right]))

    def any_binding_for(self, right: Right) -> Binding | None:
        """Return a binding that gives the right in any namespace at all; None if none does."""
        return next(iter(self._bindings[right]), None)


class AccessRules:
    """All bindings; finds those of a principal, and caches the permissions that they give."""

    def __init__(self, bindings: Iterable[Binding] = ()) -> None:
        self.bindings = tuple(bindings)
        self._exact: dict[str, list[Binding]] = {}
        for binding in self.bindings:
            self._exact.setdefault(binding.principal, []).append(binding)
        self._patterns = tuple(it for it in self.bindings if it.principal.endswith("*"))
        self._known: dict[tuple[str, ...], Permissions] = {}

    def permissions_of(self, principal: Principal) -> Permissions:
        names = principal.names
        known = self._known.get(names)
        if known is None:
            if len(self._known) >= _PRINCIPALS_MAX:
                self._known.clear()
            known = self._known[names] = Permissions(self.bindings_of(principal))
        return known

    def bindings_of(self, principal: Principal) -> tuple[Binding, ...]:
        """Return the bindings of a principal, by lookup except for prefix patterns."""
        names = principal.names
        exact = (it for name in names for it in self._exact.get(name, ()) if name[-1:] != "*")
        patterns = (
            it for it in self._patterns if any(matches(it.principal, name) for name in names)
        )
        return (*exact, *patterns)
