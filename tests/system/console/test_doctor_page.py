"""The doctor in the console, and its RPC: who may ask, and what many who ask cost."""

import asyncio

import pytest

from progressor import errors
from progressor.sdk import Client, FindingState
from progressor.storage.doctor.environment import checks as environment
from progressor.storage.doctor.invariants import checks as invariants
from tests.support.console.guarded import Guarded
from tests.support.console.visitor import Visitor
from tests.support.engine.replica import Env, running_replica

pytestmark = pytest.mark.asyncio(loop_scope="module")

_QUICK = len(environment.CHECKS) + len(invariants.checks(deep=False))


async def test_the_page_shows_the_quick_checks_and_first_what_should_be_looked_at(
    env: Env, visitor: Visitor
) -> None:
    await env.broken("broken")
    report = await env.client.replicas.run_doctor()
    assert len(report.findings) == _QUICK
    region = (await visitor.get("/doctor")).region
    faults = {it.check: it for it in report.findings if it.state is not FindingState.OK}
    shown = {
        it["id"].rpartition("-")[2] for it in region.one("ul", "findings").all("li") if it.get("id")
    }
    assert shown == set(faults), "those of the run before, which is kept"
    assert len(region.rows()) == _QUICK - len(faults)
    for it in faults.values():
        assert it.words in region.text
        assert it.advice.replace("`", "") in region.text


async def test_many_who_ask_at_once_cost_one_run(own_database: str) -> None:
    async with running_replica(own_database) as replica, Client(replica.address) as client:
        async with asyncio.TaskGroup() as group:
            asked = [group.create_task(client.replicas.run_doctor()) for _ in range(20)]
        reports = {it.result().examined_at for it in asked}
        later = await client.replicas.run_doctor()
    assert reports == {later.examined_at}


async def test_a_run_goes_on_for_the_next_one_who_asks(
    own_database: str,
) -> None:
    async with running_replica(own_database) as replica, Client(replica.address) as client:
        with pytest.raises(errors.DeadlineExceededError):
            await client.replicas.run_doctor(timeout=0.01)
        assert len((await client.replicas.run_doctor()).findings) == _QUICK


async def test_only_operators_of_all_namespaces_see_the_doctor(guarded: Guarded) -> None:
    for name, status in (("reader", 403), ("operator", 200)):
        visitor = guarded.visitors[name]
        assert (await visitor.get("/doctor")).status == status, name
        links = [it.text for it in (await visitor.get("/")).page.one("nav").all("a")]
        assert ("Doctor" in links) == (status == 200), name
