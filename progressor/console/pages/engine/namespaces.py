"""The list of namespaces, and one: its processor, what waits, quotas, and its configuration."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from progressor.console.actions import namespaces
from progressor.console.pages.engine.activity import reaches_of, waiting_of
from progressor.console.pages.page import Page
from progressor.console.visits.visit import Ask
from progressor.console.words.words import mark
from progressor.domain.quotas.quotas import Quota
from progressor.sdk.client.overview import overview_of
from progressor.sdk.values.namespaces import NamespaceConfig

PAGE_SIZE = 50

_ELSEWHERE = {"name", "pause", "quotas", "created_at", "updated_at", "revision"}
"""Fields that are shown by themselves."""

_NOTHING = {
    "history_last": mark("all"),
    "finished_process_retention": mark("kept"),
    "task_retention": mark("kept with its process"),
}
"""What no value means, where it is not that there is no limit."""

_NO_LIMIT = mark("no limit")


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """A key of the configuration; ``word``: what it means that there is no ``value``."""

    key: str
    value: object
    word: str = ""


def settings_of(config: NamespaceConfig) -> Iterator[Setting]:
    """Yield the configuration, key by key, as a configuration file has them."""
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name == "retry_policies":
            for task_type, policy in value.items():
                yield from _inner(f"retry_policies.{task_type}", policy)
        elif dataclasses.is_dataclass(value) and field.name not in _ELSEWHERE:
            yield from _inner(field.name, value)
        elif field.name not in _ELSEWHERE:
            yield _setting(field.name, value)


def _inner(key: str, value: Any) -> Iterator[Setting]:  # noqa: ANN401  # any dataclass
    for field in dataclasses.fields(value):
        yield _setting(f"{key}.{field.name}", getattr(value, field.name))


def _setting(key: str, value: object) -> Setting:
    return Setting(key, value, _NOTHING.get(key, _NO_LIMIT) if value is None else "")


async def _load_list(ask: Ask) -> Mapping[str, Any]:
    found, following = await ask.client.namespaces.list(page_size=PAGE_SIZE).page(ask.one("page"))
    overview, _ = ask.meters.read(ask.identity, await ask.client.replicas.activity())
    return {
        "namespaces": found,
        "following": following,
        "lines": {it.namespace: it for it in overview.namespaces},
        "read_at": overview.read_at,
    }


async def _load_namespace(ask: Ask) -> Mapping[str, Any]:
    config = await ask.client.namespaces.get(ask.place["namespace"])
    activity = await ask.client.replicas.activity()
    queue = next((it for it in activity.queues if it.namespace == config.name), None)
    return {
        "config": config,
        "queue": queue,
        "waiting": waiting_of(overview_of(activity, {}), [queue]) if queue else (),
        "reaches": reaches_of(activity, config.name),
        "settings": tuple(settings_of(config)),
        "quotas": [(quota.value, config.quotas.limit(quota)) for quota in Quota],
    }


LIST = Page(
    path="/namespaces",
    template="engine/namespaces.html",
    section="namespaces",
    title=mark("Namespaces"),
    load=_load_list,
)
NAMESPACE = Page(
    path="/namespaces/{namespace}",
    template="engine/namespace.html",
    section="namespaces",
    title=mark("Namespace"),
    load=_load_namespace,
    actions=namespaces.ACTIONS,
)
