"""What has broken processes, in groups."""

from collections.abc import Mapping
from typing import Any

from progressor.console.pages.page import Page
from progressor.console.pages.processes.listed import namespaces_of
from progressor.console.visits.visit import Ask
from progressor.console.words.words import mark
from progressor.domain.access.rights import Right
from progressor.domain.views.failure import BROKEN_COUNT_MAX

_PAGE_SIZE = 50


async def _load(ask: Ask) -> Mapping[str, Any]:
    namespace, shows_all = ask.one("namespace"), ask.one("all") == "yes"
    listing = ask.client.failures(
        broken_only=not shows_all,
        all_namespaces=not namespace,
        namespace=namespace,
        page_size=_PAGE_SIZE,
    )
    found, following = await listing.page(ask.one("page"))
    return {
        "failures": found,
        "following": following,
        "namespaces": await namespaces_of(ask),
        "shows_all": shows_all,
        "broken_max": BROKEN_COUNT_MAX,
        "operable": {it.namespace for it in found if ask.may(Right.OPERATE, it.namespace)},
    }


PAGE = Page(
    path="/failures",
    template="processes/failures.html",
    section="failures",
    title=mark("Failures"),
    load=_load,
)
