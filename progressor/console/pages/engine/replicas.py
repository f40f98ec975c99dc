"""The replicas: which live, what they do, and whether their releases differ."""

from collections.abc import Mapping
from typing import Any

from progressor.console.pages.page import Page
from progressor.console.visits.visit import Ask
from progressor.console.words.words import mark
from progressor.sdk.client.replicas import ReplicaState

PAGE_SIZE = 100


async def _load(ask: Ask) -> Mapping[str, Any]:
    found, following = await ask.client.replicas.list(page_size=PAGE_SIZE).page(ask.one("page"))
    living = [it for it in found if it.state is not ReplicaState.SILENT]
    return {
        "replicas": found,
        "following": following,
        "versions": sorted({it.version for it in living}),
    }


PAGE = Page(
    path="/replicas",
    template="engine/replicas.html",
    section="replicas",
    title=mark("Replicas"),
    load=_load,
)
