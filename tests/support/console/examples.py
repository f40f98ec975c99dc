"""An address for each page, about something worth seeing: tests of every page open these."""

import asyncio
from collections.abc import Mapping

from progressor.console.pages.pages import PAGES
from progressor.sdk.client.bulk import BulkKind
from progressor.sdk.client.schedules import Cron, ScheduledStart, ScheduleSpec
from progressor.sdk.values.graph import Graph
from tests.support.engine.points import PATIENCE_SECONDS
from tests.support.engine.replica import Env


async def _sealed_entry(env: Env) -> int:
    """Return the number of an entry of the audit, once there is one."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        async for entry in env.client.access.follow_audit(after=0):
            return entry.number
    raise AssertionError("it follows without end")


async def example_pages(env: Env) -> Mapping[str, str]:
    """Make what the pages show, and return the address of each page by its path.

    A new page needs an address here: with it, it is checked for accessibility, languages and more.
    """
    await env.running("running/1 & a half")
    await env.timed("waiting")
    await env.broken("broken")
    await env.finished("finished", b'{"total": 12}')
    operation = await env.client.bulk.start(
        BulkKind.NOTIFY, namespace=env.namespace, id_prefix="waiting", rate_max=None
    )
    addresses = {
        "/": "/",
        "/processes": f"/processes?namespace={env.namespace}",
        "/processes/{namespace}/{name:path}": f"/processes/{env.namespace}/broken",
        "/failures": "/failures",
        "/bulk": "/bulk",
        "/bulk/new": f"/bulk/new?kind=retry&namespace={env.namespace}",
        "/bulk/{name:path}": f"/bulk/{operation.operation_id}",
        "/namespaces": "/namespaces",
        "/namespaces/{namespace}": f"/namespaces/{env.namespace}",
        "/replicas": "/replicas",
        "/doctor": "/doctor",
        "/audit": "/audit",
        "/audit/{name}": f"/audit/{await _sealed_entry(env)}",
        **await _work(env),
    }
    missing = {it.path for it in PAGES} - addresses.keys()
    assert not missing, f"tests/support/console/examples.py has no address for {missing}"
    return addresses


async def _work(env: Env) -> Mapping[str, str]:
    """Make a gate, a job and a schedule, and return the addresses of their pages."""
    await env.client.gates.set("database/1", 2)
    graph = Graph()
    graph.node("sum", after=graph.fan_out("count", [b"a", b"b"]))
    await env.client.jobs.submit("job", graph)
    spec = ScheduleSpec(times=Cron("0 2 * * *", "Europe/Berlin"), target=ScheduledStart())
    await env.client.schedules.create("nightly", spec, paused=True)
    space = env.namespace
    return {
        "/gates": f"/gates?namespace={space}",
        "/gates/{namespace}/{name:path}": f"/gates/{space}/database%2F1",
        "/orders": f"/orders?namespace={space}",
        "/jobs": f"/jobs?namespace={space}",
        "/jobs/{namespace}/{name:path}": f"/jobs/{space}/job",
        "/schedules": f"/schedules?namespace={space}",
        "/schedules/{namespace}/{name:path}": f"/schedules/{space}/nightly",
    }
