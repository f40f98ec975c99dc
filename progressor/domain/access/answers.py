"""Answers about access: the identity of a caller, and whether a request would be served."""

import dataclasses

from progressor.domain.access.rights import Binding


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A caller: its principal, the groups to which bindings apply as well, and its bindings.

    ``is_access_controlled``: False on an engine without access control, where every caller may do
    everything and the principal is empty.
    """

    principal: str
    groups: tuple[str, ...]
    bindings: tuple[Binding, ...]
    is_access_controlled: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether a request would be served.

    ``right``: the right that it needs; empty if valid credentials suffice. ``binding``: a binding
    that gives the right. ``shows_payloads``: whether the answer includes payloads.
    """

    is_allowed: bool
    right: str
    binding: Binding | None
    shows_payloads: bool
