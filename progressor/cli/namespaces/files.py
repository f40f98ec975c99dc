"""Namespaces as the tables ``[namespaces.NAME]`` of a configuration file, and how two differ."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from progressor.cli.input.toml import toml_key, toml_value
from progressor.cli.namespaces.namespaces import table_of
from progressor.sdk.values.namespaces import NamespaceConfig
from progressor.settings.decoding import keys_of
from progressor.settings.namespaces import NamespaceTable

_DEFAULTS = table_of(NamespaceConfig(name="default", processor_targets=()))
_FIELDS = tuple(
    "history_last" if key.field == "history" else key.field for key in keys_of(NamespaceTable)
)

_TABLES = frozenset({"retry_policy", "retry_policies", "quotas"})

Table = Mapping[str, object]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A key of a namespace and its values; None: it has none."""

    key: str
    before: object
    after: object


def changes(before: Table, after: Table, prefix: str = "") -> Iterator[Change]:
    """Yield the keys whose values differ; tables are compared key by key."""
    for key in {**before, **after}:
        absent: object = {} if key in _TABLES else None
        old, new = before.get(key, absent), after.get(key, absent)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from changes(old, new, f"{prefix}{key}.")
        elif old != new:
            yield Change(key=f"{prefix}{key}", before=old, after=new)


def changed_fields(before: NamespaceConfig, after: NamespaceConfig) -> list[str]:
    """Return the fields, of those that a file sets, in which two namespaces differ."""
    return [it for it in _FIELDS if getattr(before, it) != getattr(after, it)]


def short_table(config: NamespaceConfig) -> dict[str, object]:
    """Return the table of a namespace with only the keys that differ from their defaults.

    A retry policy of a task type is kept even if it has only defaults: it replaces that of the
    namespace.
    """
    table = {key: it for key, it in table_of(config).items() if it != _DEFAULTS.get(key)}
    for key in ("retry_policy", "quotas"):
        if key in table:
            table[key] = _short(table[key], key)
    policies = table.get("retry_policies")
    if isinstance(policies, dict):
        table["retry_policies"] = {key: _short(it, "retry_policy") for key, it in policies.items()}
    return table


def toml_of(configs: Sequence[NamespaceConfig]) -> str:
    """Return namespaces as a file that is read back to the same namespaces."""
    return "\n".join(
        line
        for config in configs
        for line in _lines(f"namespaces.{toml_key(config.name)}", short_table(config))
    )


def _short(table: object, name: str) -> dict[str, object]:
    defaults = _DEFAULTS[name]
    assert isinstance(table, dict), f"{name} is a table"
    assert isinstance(defaults, dict), f"{name} is a table"
    return {key: it for key, it in table.items() if it != defaults.get(key)}


def _lines(name: str, table: Table) -> Iterator[str]:
    yield f"[{name}]"
    for key, value in table.items():
        if not isinstance(value, dict):
            yield f"{toml_key(key)} = {toml_value(value)}"
    yield ""
    for key, value in table.items():
        if key == "retry_policies" and isinstance(value, dict):
            for task_type, policy in value.items():
                yield from _lines(f"{name}.{key}.{toml_key(task_type)}", policy)
        elif isinstance(value, dict):
            yield from _lines(f"{name}.{key}", value)
