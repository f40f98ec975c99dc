"""The tables of roles and rights, made of the tables that the engine goes by."""

from collections.abc import Iterable

from progressor.api.guard.rules import RULES
from progressor.domain.access.rights import ROLES, Right


def roles() -> str:
    """Return which role has which right."""
    rows = (
        (f"`{role}`", *("yes" if right in rights else "" for right in Right))
        for role, rights in ROLES.items()
    )
    return _table(("role", *(f"`{right}`" for right in Right)), rows)


def rights() -> str:
    """Return what each RPC needs, those of one kind together."""
    rows: dict[tuple[str, str], list[str]] = {}
    for rpc, rule in RULES.items():
        needed = "valid credentials" if rule.right is None else f"`{rule.right}`"
        rows.setdefault((needed, rule.scope), []).append(rpc)
    return _table(
        ("right", "in", "RPCs"),
        ((right, scope, ", ".join(rpcs)) for (right, scope), rpcs in rows.items()),
    )


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
