"""A namespace from ``--set`` options: the keys that a configuration file has for one."""

import dataclasses
import datetime as dt
from collections.abc import Sequence
from typing import Any

from progressor.cli.input.inputs import pairs
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.policy import RetryPolicy
from progressor.sdk.values.namespaces import NamespaceConfig, ZombiePolicy
from progressor.settings.decoding import Given
from progressor.settings.namespaces import decode_namespace

_FIXED = ("name", "created_at", "updated_at", "revision")


def config_from(
    name: str, *, targets: Sequence[str], texts: Sequence[str], base: NamespaceConfig | None = None
) -> NamespaceConfig:
    """Return `base`, or the defaults, changed by the options.

    Args:
        name: Of the namespace.
        targets: Replace the processor targets; if empty, they are kept.
        texts: ``KEY=VALUE``, for example ``retry_policy.attempts_max=3``; an empty value resets a
            key to its default.
        base: The configuration to update.

    Raises:
        ConfigError: A key is unknown, or its value is wrong.
        InvalidRequestError: A text is not ``KEY=VALUE``.
    """
    table = {} if base is None else _table_of(base)
    for key, value in pairs("--set", texts).items():
        _put(table, key.split("."), value)
    if targets:
        table["processor_targets"] = list(targets)
    given = {key: Given(value=value, is_text=True) for key, value in table.items()}
    return _config_of(decode_namespace(name, given), revision=base.revision if base else 0)


def changed_fields(before: NamespaceConfig, after: NamespaceConfig) -> list[str]:
    """Return the fields that differ and that an update can change."""
    names = [field.name for field in dataclasses.fields(before)]
    return [it for it in names if it not in _FIXED and getattr(before, it) != getattr(after, it)]


def _put(table: dict[str, object], path: Sequence[str], value: str) -> None:
    for part in path[:-1]:
        inner = table.setdefault(part, {})
        if not isinstance(inner, dict):
            break  # the decoder names the whole key
        table = inner
    table[path[-1]] = value


def _table_of(config: NamespaceConfig) -> dict[str, object]:
    """Return a configuration as the table of a file, for the keys that a user may set."""
    last = config.history_last
    table = _plain(config) | {
        "history": {None: "all", 0: "none"}.get(last, last),
        "retry_policy": _plain(config.retry_policy),
        "retry_policies": {key: _plain(policy) for key, policy in config.retry_policies.items()},
    }
    return {key: value for key, value in table.items() if key not in {*_FIXED, "history_last"}}


def _plain(value: NamespaceConfig | RetryPolicy) -> dict[str, object]:
    table: dict[str, object] = {}
    for field in dataclasses.fields(value):
        inner = getattr(value, field.name)
        if isinstance(inner, dt.timedelta):
            table[f"{field.name}_seconds"] = inner.total_seconds()
        elif inner is not None:
            table[field.name] = list(inner) if isinstance(inner, tuple) else inner
    return table


def _config_of(found: Namespace, *, revision: int) -> NamespaceConfig:
    names = {field.name for field in dataclasses.fields(NamespaceConfig)}
    fields: dict[str, Any] = {
        it.name: getattr(found, it.name) for it in dataclasses.fields(found) if it.name in names
    }
    fields |= {
        "retry_policies": {str(key): policy for key, policy in found.retry_policies.items()},
        "zombie_policy": ZombiePolicy(found.zombie_policy.value),
        "history_last": found.history_kept,
        "revision": revision,
    }
    return NamespaceConfig(**fields)
