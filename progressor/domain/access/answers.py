"""What is said about access: who a caller is, and whether a request would be served."""

import dataclasses

from progressor.domain.access.rights import Binding


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who a caller is: its principal, further names that bindings may be for, and its bindings.

    Without access control (``is_access_controlled``), everybody may do everything, and the
    principal is empty.
    """

    principal: str
    groups: tuple[str, ...]
    bindings: tuple[Binding, ...]
    is_access_controlled: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether a request would be served.

    ``right``: what it needs; empty: only valid credentials. ``binding``: one that gives it.
    ``shows_payloads``: whether payloads in its answer are shown.
    """

    is_allowed: bool
    right: str
    binding: Binding | None
    shows_payloads: bool
