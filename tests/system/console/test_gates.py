"""The pages of gates and orders, and what can be done there, as a browser without scripts does."""

import contextlib
from collections.abc import AsyncIterator

import pytest

from progressor import errors
from progressor.sdk import Constraints
from tests.support.console.visitor import Visitor
from tests.support.engine.replica import Env
from tests.support.processor.scripted import Answer, Hang

pytestmark = pytest.mark.asyncio(loop_scope="module")

GATE = "database/orders & <b>"


@contextlib.asynccontextmanager
async def full_gate(env: Env) -> AsyncIterator[None]:
    """Have one process hold the gate, and two wait for it, one with priority."""
    hang = Hang()
    await env.running("holder", hang, Answer())
    held = Constraints(gates={GATE: 1})
    await env.client.call("holder", constraints=held, accept_only=True)
    await env.asked("holder", 2)
    for name, priority in (("second", 3), ("first", 1)):
        await env.running(name)
        made = Constraints(gates={GATE: 1, "another": 5}, priority=priority)
        await env.client.call(name, constraints=made, accept_only=True)
    yield
    hang.released.set()
    for name in ("first", "second"):
        await env.settled(name, 2)


async def opened(visitor: Visitor, env: Env) -> str:
    """Return the path of the gate's page, as the list links to it."""
    listed = await visitor.get("/gates", {"namespace": env.namespace})
    return listed.page.link(GATE)["href"]


async def test_a_gate_shows_who_holds_it_and_its_queue_in_order(env: Env, visitor: Visitor) -> None:
    async with full_gate(env):
        listed = await visitor.get("/gates", {"namespace": env.namespace})
        page = (await visitor.get(await opened(visitor, env))).region
    rows = {row[0]: row[1:4] for row in listed.region.rows()}
    assert rows == {"another": ["0", "5", "0"], GATE: ["1", "1", "2"]}
    assert page.one("h1").text == GATE
    (holder, *queue) = page.rows()
    assert (holder[0], holder[3]) == ("holder", "the task ends")
    assert page.link("holder")["href"] == f"/processes/{env.namespace}/holder"
    assert [row[:2] for row in queue] == [["1", "first"], ["2", "second"]]
    assert page.link("another")["href"] == f"/gates/{env.namespace}/another"
    assert "this gate" in queue[0][5]
    assert all(it["datetime"] for it in page.all("time"))


async def test_a_larger_capacity_lets_waiting_tasks_in(env: Env, visitor: Visitor) -> None:
    async with full_gate(env):
        page = (await visitor.get(await opened(visitor, env))).page
        form = (await visitor.follow(page.link("Set the capacity"))).page.form(do="set")
        assert (form.fields["capacity"], form.fields["revision"]) == ("1", "1")
        done = await visitor.send(form, capacity="3")
        await env.settled("first", 2)
        await env.settled("second", 2)
        view = await env.client.gates.get(GATE)
    assert done.page.one(class_="note").text == "The capacity is now 3."
    assert (view.gate.capacity, view.gate.revision) == (3, 2)


async def test_two_operators_do_not_overwrite_each_other(env: Env, visitor: Visitor) -> None:
    await env.client.gates.set(GATE, 1)
    form = (await visitor.get(await opened(visitor, env), {"do": "set"})).page.form(do="set")
    await env.client.gates.set(GATE, 7)
    refused = await visitor.submit(form, capacity="2")
    assert refused.status == 409
    assert "revision" in refused.page.one(class_="action").one(role="alert").text
    assert (await env.client.gates.get(GATE)).gate.capacity == 7


@pytest.mark.parametrize("capacity", ["-1", "many", "9999999999", "1.5"])
async def test_a_capacity_must_be_a_number(env: Env, visitor: Visitor, capacity: str) -> None:
    await env.client.gates.set(GATE, 1)
    form = (await visitor.get(await opened(visitor, env), {"do": "set"})).page.form(do="set")
    refused = await visitor.submit(form, capacity=capacity)
    alert = refused.page.one(class_="action").one(role="alert").text
    assert (refused.status, "capacity" in alert) == (400, True)
    assert refused.page.form(do="set").fields["capacity"] == capacity
    assert (await env.client.gates.get(GATE)).gate.capacity == 1


async def test_a_gate_is_deleted_only_when_nobody_uses_it(env: Env, visitor: Visitor) -> None:
    async with full_gate(env):
        path = await opened(visitor, env)
        form = (await visitor.get(path, {"do": "delete"})).page.form(do="delete")
        refused = await visitor.submit(form)
        assert (refused.status, "in use" in refused.page.one(class_="action").text) == (409, True)
    form = (await visitor.get(path, {"do": "delete"})).page.form(do="delete")
    assert "progressor gate delete" in (await visitor.get(path, {"do": "delete"})).page.text
    done = await visitor.send(form)
    assert GATE in done.page.one(class_="note").text
    assert done.page.one("h1").text == "Gates"
    with pytest.raises(errors.GateNotFoundError):
        await env.client.gates.get(GATE)


async def test_orders_show_what_each_version_waits_for(env: Env, visitor: Visitor) -> None:
    hang = Hang()
    await env.running("small", hang, Answer())
    await env.running("large")
    await env.client.call("small", constraints=Constraints(order=("db", "1.9")), accept_only=True)
    await env.asked("small", 2)
    await env.client.call("large", constraints=Constraints(order=("db", "1.10")), accept_only=True)
    page = (await visitor.get("/orders", {"namespace": env.namespace})).region
    hang.released.set()
    await env.settled("large", 2)
    (row,) = page.rows()
    assert (row[0], row[1], row[2]) == ("large", "db", "1.10")
    assert (row[3].split()[0], row[4]) == ("small", "1.9")
    assert page.link("small")["href"] == f"/processes/{env.namespace}/small"


@pytest.mark.parametrize(
    ("path", "status", "named"),
    [
        ("/gates/{namespace}/none", 404, "none"),
        ("/gates?namespace=no-such", 404, "no-such"),
        ("/gates?namespace={namespace}&page=odd", 400, "page"),
        ("/orders?namespace={namespace}&page=odd", 400, "page"),
    ],
)
async def test_a_wrong_address_says_what_is_wrong(
    env: Env, visitor: Visitor, path: str, status: int, named: str
) -> None:
    answer = await visitor.get(path.format(namespace=env.namespace))
    assert (answer.status, named in answer.region.one(role="alert").text) == (status, True)
