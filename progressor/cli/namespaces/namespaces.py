"""Commands about namespaces: create, update, get, list, pause, resume, delete."""

import dataclasses
import datetime as dt
import getpass
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import RenderableType

from progressor import errors
from progressor.cli.input.options import (
    PAGE_MAX,
    EngineOptions,
    bad_input,
    client_of,
    option,
    pairs,
)
from progressor.cli.output import (
    Column,
    ExitCode,
    facts,
    instant_text,
    pause_text,
    plain,
    report_words,
    show,
    table,
)
from progressor.domain.processes.namespace import Namespace
from progressor.domain.processes.policy import RetryPolicy
from progressor.domain.quotas.quotas import Quotas
from progressor.domain.views.bulk import OPERATIONS
from progressor.sdk.values.namespaces import NamespaceConfig, OnError, ZombiePolicy
from progressor.settings.decoding import Given, keys_of
from progressor.settings.namespaces import NamespaceTable, decode_namespace

if TYPE_CHECKING:  # loaded by the commands that make one
    from progressor.sdk.client.client import Client

Targets = Annotated[
    tuple[str, ...],
    option("Where the processor listens: host:port or unix:/path; may be repeated."),
]
Set = Annotated[
    tuple[str, ...],
    Parameter(
        name="--set",
        negative="",
        help="KEY=VALUE, for example retry_policy.attempts_max=3; `progressor config --explain` "
        "prints the keys.",
    ),
]

All = Annotated[bool, Parameter(name="--all", negative="", help="All namespaces.")]

_FIXED = frozenset({"name", "created_at", "updated_at", "revision", "pause"})
"""Fields that a user cannot set."""

_NOTHING: Mapping[str, Mapping[object, str]] = {
    "elapsed_max": {None: "no limit"},
    "history_last": {None: "all", 0: "none"},
    "finished_process_retention": {None: "kept"},
    "finished_process_retention_seconds": {0: "0, deleted at once"},
    "task_retention": {None: "kept with its process"},
    "task_retention_seconds": {0: "0, deleted at once"},
    "unreachable_patience": {None: "no limit"},
}
"""What is meant by no value and by 0, by key."""

_NAMESPACES: Mapping[str, Column[NamespaceConfig]] = {
    "namespace": lambda it: it.name,
    "processor": lambda it: ", ".join(it.processor_targets),
    "revision": lambda it: str(it.revision),
    "updated": lambda it: instant_text(it.updated_at),
    "paused": lambda it: "" if it.pause is None else pause_text(it.pause),
}


async def create(
    name: str, /, *, target: Targets, settings: Set = (), engine: EngineOptions = EngineOptions()
) -> None:
    """Create a namespace: processes that share a processor, policies and limits."""
    config = config_from(name, targets=target, texts=settings)
    async with client_of(engine) as client:
        _show(await client.namespaces.create(config), engine)


async def update(
    name: str,
    /,
    *,
    target: Targets = (),
    settings: Set = (),
    engine: EngineOptions = EngineOptions(),
) -> None:
    """Change the given settings of a namespace; replicas apply them within two seconds.

    Fails without a change if another update comes in between.
    """
    if not (target or settings):
        raise bad_input("--set", "--set or --target must be given")
    async with client_of(engine) as client:
        found = await client.namespaces.get(name)
        wanted = config_from(name, targets=target, texts=settings, base=found)
        names = [field.name for field in dataclasses.fields(wanted) if field.name not in _FIXED]
        changed = [it for it in names if getattr(found, it) != getattr(wanted, it)]
        if "cell" in changed:
            words = f"cell cannot change: {name} lives in {found.cell or 'the only one'}"
            raise bad_input("--set", words)
        if changed:
            found = await client.namespaces.update(
                wanted, fields=changed, expected_revision=found.revision
            )
    _show(found, engine)


async def get(name: str, /, *, engine: EngineOptions = EngineOptions()) -> None:
    """Print a namespace."""
    async with client_of(engine) as client:
        _show(await client.namespaces.get(name), engine)


async def list_namespaces(*, engine: EngineOptions = EngineOptions()) -> None:
    """Print all namespaces in the order of their names."""
    async with client_of(engine) as client:
        found = [it async for it in client.namespaces.list(page_size=PAGE_MAX)]
    columns = dict(_NAMESPACES)
    if any(it.cell for it in found):
        columns["cell"] = lambda it: it.cell
    show({"namespaces": found}, table(columns, found), as_json=engine.json)


async def pause(
    *names: str,
    reason: Annotated[str, option("Why the namespace is paused, shown with the tasks that wait.")],
    author: Annotated[str | None, option("Who pauses; your login name by default.")] = None,
    refuse: Annotated[
        bool, option("Refuse Start, Call and Notify instead of admitting them to wait.")
    ] = False,
    every: All = False,
    engine: EngineOptions = EngineOptions(),
) -> ExitCode:
    """Pause namespaces until they are resumed: none of their steps begins, in any replica.

    Running steps end normally. Timers wait, schedules do not run, requests are admitted and wait.
    """
    by = _login_name() if author is None else author

    async def one(client: "Client", name: str) -> NamespaceConfig:
        return await client.namespaces.pause(name, reason=reason, author=by, refuse=refuse)

    # Bulk operations are of use while the namespaces of their processes are paused.
    return await _each(names, one, every=every, without=(OPERATIONS,), engine=engine)


async def resume(
    *names: str, every: All = False, engine: EngineOptions = EngineOptions()
) -> ExitCode:
    """Resume paused namespaces; what came due in the pause runs, slowly at first."""

    async def one(client: "Client", name: str) -> NamespaceConfig:
        return await client.namespaces.resume(name)

    return await _each(names, one, every=every, engine=engine)


async def delete(name: str, /, *, engine: EngineOptions = EngineOptions()) -> None:
    """Delete a namespace that has no processes."""
    async with client_of(engine) as client:
        await client.namespaces.delete(name)
    show({"deleted": name}, f"deleted namespace {name}", as_json=engine.json)


def config_from(
    name: str, *, targets: Sequence[str], texts: Sequence[str], base: NamespaceConfig | None = None
) -> NamespaceConfig:
    """Return `base`, or the defaults, changed by the options.

    Args:
        name: Of the namespace.
        targets: Replace the processor targets; if empty, they are kept.
        texts: ``KEY=VALUE`` with the keys of a configuration file, for example
            ``retry_policy.attempts_max=3``; an empty value resets a key to its default.
        base: The configuration to update.

    Raises:
        ConfigError: A key is unknown, or its value is wrong.
        InvalidRequestError: A text is not ``KEY=VALUE``.
    """
    table = {} if base is None else table_of(base)
    for key, value in pairs("--set", texts).items():
        _put(table, key.split("."), value)
    if targets:
        table["processor_targets"] = list(targets)
    given = {key: Given(value=value, is_text=True) for key, value in table.items()}
    found = config_of(decode_namespace(name, given))
    return dataclasses.replace(found, revision=base.revision if base else 0)


def config_of(found: Namespace) -> NamespaceConfig:
    """Return a namespace of a configuration file as the SDK sends it."""
    fields: dict[str, Any] = {
        field.name: getattr(found, field.name)
        for field in dataclasses.fields(NamespaceConfig)
        if hasattr(found, field.name)
    }
    fields |= {
        "retry_policies": {str(key): policy for key, policy in found.retry_policies.items()},
        "on_error": OnError(found.on_error.value),
        "zombie_policy": ZombiePolicy(found.zombie_policy.value),
        "history_last": found.history_kept,
    }
    return NamespaceConfig(**fields)


async def _each(
    names: Sequence[str],
    change: Callable[["Client", str], Awaitable[NamespaceConfig]],
    *,
    every: bool,
    without: Sequence[str] = (),
    engine: EngineOptions,
) -> ExitCode:
    """Change the namespaces of these names, or all `without` some, and print them.

    Of several, one that is refused does not keep the others from being changed.
    """
    if bool(names) == every:
        raise bad_input("NAMES", "either names or --all must be given")
    async with client_of(engine) as client:
        if every:
            listed = client.namespaces.list(page_size=PAGE_MAX)
            names = [it.name async for it in listed if it.name not in without]
        found, refused = [], []
        for name in dict.fromkeys(names):
            try:
                found.append(await change(client, name))
            except errors.ProgressorError as error:
                if len(names) == 1:
                    raise
                refused.append({"name": name, "reason": error.reason, "message": str(error)})
    shown = [table(_NAMESPACES, found)] if found else []
    show({"namespaces": found, "refused": refused}, *shown, as_json=engine.json)
    for it in () if engine.json else refused:
        message = f"{it['name']}: {it['message']}"
        report_words(message, it["reason"], {}, code=ExitCode.FAILED, as_json=False)
    return ExitCode.FAILED if refused else ExitCode.DONE


def _login_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        # A container may run as a user without a name.
        return ""


def _put(table: dict[str, object], path: Sequence[str], value: str) -> None:
    for part in path[:-1]:
        inner = table.setdefault(part, {})
        if not isinstance(inner, dict):
            break  # the decoder names the whole key
        table = inner
    table[path[-1]] = value


def table_of(config: NamespaceConfig) -> dict[str, object]:
    """Return a configuration as the table of a file, without the keys that have no value."""
    last = config.history_last
    table = _plain(config) | {
        "history": {None: "all", 0: "none"}.get(last, last),
        "retry_policy": _plain(config.retry_policy),
        "quotas": _plain(config.quotas),
        "retry_policies": {key: _plain(policy) for key, policy in config.retry_policies.items()},
    }
    return {key.name: table[key.name] for key in keys_of(NamespaceTable) if key.name in table}


def _plain(value: NamespaceConfig | RetryPolicy | Quotas) -> dict[str, object]:
    table: dict[str, object] = {}
    for field in dataclasses.fields(value):
        inner = getattr(value, field.name)
        if isinstance(inner, dt.timedelta):
            table[f"{field.name}_seconds"] = inner.total_seconds()
        elif inner is not None:
            table[field.name] = list(inner) if isinstance(inner, tuple) else inner
    return table


def _show(config: NamespaceConfig, engine: EngineOptions) -> None:
    document = plain(config)
    assert isinstance(document, dict), "a dataclass is a table"
    texts = {key: _text(key, value) for key, value in document.items()}
    if config.pause is not None:
        texts["pause"] = pause_text(config.pause)
    people: RenderableType = facts(texts)
    show(config, people, as_json=engine.json)


def _text(key: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value == 0:
        return _NOTHING.get(key, {}).get(value, "" if value is None else str(value))
    match value:
        case dict():
            texts = {name: _text(name, inner) for name, inner in value.items()}
            return ", ".join(f"{name} {text}" for name, text in texts.items() if text)
        case list():
            return ", ".join(map(str, value))
        case float() if value.is_integer():
            return f"{value:.0f}"
        case _:
            return str(value)
