"""The list of processes, the page of one, and the actions on it, before a real engine."""

import datetime as dt
import json

import pytest

from progressor import errors
from progressor.console.pages.processes.process import IDLE_MIN, rows_of
from progressor.sdk import Constraints
from progressor.sdk.values.processes import NewTimer, ProcessStatus, TaskStatus, TaskTrace, TaskType
from progressor.v1.messages_pb2 import MESSAGE_KIND_CALL, MESSAGE_KIND_NOTIFY, Message
from progressor.v1.processor_service_pb2 import Complete
from tests.support.console.guarded import HIDDEN, READABLE, Guarded
from tests.support.console.html import Element
from tests.support.console.visitor import Answer, Visitor
from tests.support.engine.replica import Env, answering, broken, refusal, response
from tests.support.processor.scripted import Hang

pytestmark = pytest.mark.asyncio(loop_scope="module")

LARGE = json.dumps({"text": "x" * 30_000}).encode()


def path(env: Env, process_id: str) -> str:
    return f"/processes/{env.namespace}/{process_id}"


async def do(visitor: Visitor, env: Env, process_id: str, action: str, **fields: str) -> Answer:
    """Open the form of an action, fill it in and send it, and return the page after it."""
    page = (await visitor.get(path(env, process_id), {"do": action})).page
    return await visitor.send(page.form(do=action), **fields)


def ids(answer: Answer) -> list[str]:
    return [row[0] for row in answer.region.rows()]


def note(answer: Answer) -> str:
    return answer.page.one(class_="note").text


def alert(answer: Answer) -> str:
    return answer.page.one(class_="action").one(role="alert").text


def why(answer: Answer) -> Element:
    """Return what a page of a process says about why, without the engine's own words."""
    section = answer.region.all("section")[0]
    for it in section.all("details"):
        assert it.parent is not None
        it.parent.children.remove(it)
    return section


# --- The list


async def test_a_list_says_in_words_what_it_filters_and_has_a_link_without_each_part(
    env: Env, visitor: Visitor
) -> None:
    await env.running("a-1")
    await env.broken("a-2")
    await env.finished("a-3")
    await env.running("b-1")
    query = {"namespace": env.namespace, "status": ["running", "error"], "id_prefix": "a-"}
    found = await visitor.get("/processes", query)
    assert ids(found) == ["a-2", "a-1"]
    text = found.region.one(class_="filtered").all("p")[0].text
    for part in (env.namespace, "one of these statuses: running, in error", "begins with a-"):
        assert part in text
    without = await visitor.follow(found.region.link("Without “with the status in error”"))
    assert ids(without) == ["a-1"]
    wider = await visitor.follow(without.region.link("Without “whose id begins with a-”"))
    assert ids(wider) == ["b-1", "a-1"]
    assert "hx-morph-skip" in found.region.one("form").attributes, "entered text stays"


async def test_a_list_counts_by_status_while_nothing_else_filters(
    env: Env, visitor: Visitor
) -> None:
    await env.running("a")
    await env.broken("b")
    counted = await visitor.get("/processes", {"namespace": env.namespace, "status": "error"})
    counts = counted.region.one(class_="counts")
    assert [it.text for it in counts.all("a")] == [
        "starting 0", "running 1", "in error 1", "finished 0",
    ]  # fmt: skip
    assert ids(await visitor.follow(counts.all("a")[1])) == ["a"]
    filtered = await visitor.get("/processes", {"namespace": env.namespace, "id_prefix": "a"})
    assert not filtered.region.all(class_="counts")


async def test_a_list_is_filtered_by_metadata_cause_failure_and_time(
    env: Env, visitor: Visitor
) -> None:
    env.processor.on_process("m", answering())
    await env.client.start("m", metadata={"customer": "7", "count": 5})
    await env.timed("t")
    await env.broken("e")
    process = (await env.client.get("e")).process
    long_ago, now = "2020-01-01T00:00", dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    for query, expected in [
        ({"metadata": "count=5"}, ["m"]),
        ({"metadata": 'customer="7"'}, ["m"]),
        ({"metadata": "customer=8"}, []),
        ({"cause": "timer"}, ["t"]),
        ({"failure_id": process.failure_id}, ["e"]),
        ({"failure_reason": process.failure_reason}, ["e"]),
        ({"created_to": long_ago}, []),
        ({"created_from": long_ago, "broken_from": long_ago}, ["e"]),
        ({"broken_from": now.isoformat()}, []),
    ]:
        found = await visitor.get("/processes", {"namespace": env.namespace, **query})
        rows = [it for it in ids(found) if it != "No process matches."]
        assert rows == expected, query


async def test_a_list_shows_what_the_first_task_waits_for_if_it_is_pending(
    env: Env, visitor: Visitor
) -> None:
    await env.timed("t")
    hang, _ = await env.busy("r")
    page = await visitor.get("/processes", {"namespace": env.namespace})
    last = {row[0]: row[5] for row in page.region.rows()}
    assert last["t"].startswith("a timer")
    assert last["r"] == "running"
    hang.released.set()


async def test_a_list_is_paged_forward_and_back_to_the_first_page(
    env: Env, visitor: Visitor
) -> None:
    for it in range(53):
        await env.client.put(f"p-{it:02}")
    first = await visitor.get("/processes", {"namespace": env.namespace, "id_prefix": "p-"})
    second = await visitor.follow(first.region.link("Next page"))
    assert ids(first) + ids(second) == [f"p-{it:02}" for it in reversed(range(53))]
    assert not [it for it in second.region.all("a") if it.text == "Next page"]
    again = await visitor.follow(second.region.link("First page"))
    assert ids(again) == ids(first)


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("status=odd", "status"), ("cause=odd", "cause"), ("metadata=odd", "metadata"),
        ("broken_to=odd", "broken_to"), ("page=odd", "page_token"),
    ],
)  # fmt: skip
async def test_a_wrong_parameter_is_named(visitor: Visitor, query: str, named: str) -> None:
    answer = await visitor.get(f"/processes?{query}")
    assert (answer.status, named in answer.region.one(role="alert").text) == (400, True)


# --- Why


async def test_a_full_gate_is_explained_with_links_to_it_and_to_its_holder(
    env: Env, visitor: Visitor
) -> None:
    gated = Constraints(gates={"g/1": 1})
    hang, task_id = await _holding(env, "holder", gated)
    await env.running("waiter")
    await env.client.call("waiter", constraints=gated, accept_only=True)
    page = await visitor.get(path(env, "waiter"))
    section = why(page)
    text = section.text
    assert "The gate g/1 is full (1 / 1)." in text
    assert "number 1 of 1 in the queue" in text
    assert f"holder, task {task_id}, since" in text
    assert section.link("g/1")["href"] == f"/gates/{env.namespace}/g%2F1"
    assert section.link("Raise the capacity of the gate")["href"].startswith("/gates/")
    chain = section.one("ol", class_="chain").all("li")
    assert [it.all("a")[0].text for it in chain] == ["holder"]
    assert "It has been running since" in chain[0].text
    assert section.all("svg")
    hang.released.set()


async def test_a_smaller_version_is_explained_and_can_be_cancelled_from_there(
    env: Env, visitor: Visitor
) -> None:
    hang, task_id = await _holding(env, "older", Constraints(order=("o", "1.2")))
    await env.running("newer")
    await env.client.call("newer", constraints=Constraints(order=("o", "1.10")), accept_only=True)
    section = why(await visitor.get(path(env, "newer")))
    assert "Its version 1.10 of o waits for the smaller version 1.2" in section.text
    form = (await visitor.follow(section.link("Cancel version 1.2"))).page.form(do="cancel")
    assert form.fields["task_id"] == str(task_id)
    await visitor.send(form, confirmation="older")
    await env.settled("newer", 2)
    assert "waits for nothing" in why(await visitor.get(path(env, "newer"))).text
    hang.released.set()


async def test_a_pause_an_earlier_task_and_a_timer_are_explained(
    env: Env, visitor: Visitor
) -> None:
    await env.timed("p")
    hang, task_id = await env.busy("q")
    behind = await env.client.notify("q")
    await env.client.namespaces.pause(env.namespace, reason="repairs <b>")
    try:
        timed = why(await visitor.get(path(env, "p"))).text
        text = why(await visitor.get(path(env, "q"))).text
    finally:
        await env.client.namespaces.resume(env.namespace)
    assert "It is due at" in timed
    assert "Reason: repairs <b>" in timed
    assert f"It waits behind call {task_id}, which has been running since" in text
    assert f"notification {behind.task_id}" in text
    hang.released.set()


async def test_a_broken_process_says_what_broke_it_and_how_many_broke_like_it(
    env: Env, visitor: Visitor
) -> None:
    task_id = await env.broken("b-1")
    await env.broken("b-2")
    env.processor.on_process("b-1", broken())
    page = await do(visitor, env, "b-1", "repair")
    assert "REPAIR_FAILED" in alert(page) or "repair" in alert(page)
    section = why(await visitor.get(path(env, "b-1")))
    assert f"Task {task_id} broke it." in section.text
    assert "2 processes are broken like this" in section.text
    assert "failed at" in section.text
    assert {it.text for it in section.all("a", class_="button")} >= {"Retry", "Repair"}


async def _holding(env: Env, process_id: str, constraints: Constraints) -> tuple[Hang, int]:
    """Return what to release, and the task: a call with constraints that runs."""
    hang = Hang()
    await env.running(process_id, hang, answering())
    receipt = await env.client.call(process_id, constraints=constraints, accept_only=True)
    await env.asked(process_id, 2)
    return hang, receipt.task_id


async def test_messages_and_replies_lead_to_the_processes_at_their_other_ends(
    env: Env, visitor: Visitor
) -> None:
    hang = Hang(response=response(response=b'"42"'))
    await env.running("asked", hang, answering())
    messages = [
        Message(kind=MESSAGE_KIND_CALL, process_id="asked", reply="price"),
        Message(kind=MESSAGE_KIND_NOTIFY, process_id="nobody"),
    ]
    await env.running("asks", answering(messages=messages), answering())
    await env.client.call("asks")
    await env.asked("asked", 2)
    asks, asked = await visitor.get(path(env, "asks")), await visitor.get(path(env, "asked"))
    section = why(asks)
    assert "It waits for a reply price of asked: the call that its task" in section.text
    assert [it.all("a")[0].text for it in section.one("ol", class_="chain").all("li")] == ["asked"]
    assert "asks has been waiting for the answer of its task" in why(asked).text
    assert "Sent by task" in asked.region.one("table", class_="timeline").text
    refused = asks.region.one("table", class_="timeline").text
    assert "The notification to nobody was refused: PROCESS_NOT_FOUND" in refused
    hang.released.set()
    await env.settled("asks", 3)
    replied = (await visitor.get(path(env, "asks"))).region.one("table", class_="timeline").text
    assert 'The reply price of asked."42"' in replied


async def test_stored_texts_are_never_markup(env: Env, visitor: Visitor) -> None:
    evil = "<script>alert('x')</script>"
    gated = Constraints(gates={evil: 1}, order=(evil, "1.2"))
    hang, _ = await _holding(env, evil, gated)
    env.processor.on_process(f"{evil}2", answering(evil.encode(), aux_state=evil.encode()))
    await env.client.start(f"{evil}2", evil.encode(), metadata={evil: evil})
    await env.client.call(f"{evil}2", constraints=gated, accept_only=True)
    env.processor.on_process("broken", broken(evil))
    await refusal(env.client.start("broken"))
    await env.client.put("named", timers={evil: NewTimer(after=3600)})
    listed = await visitor.get("/processes", {"namespace": env.namespace, "id_prefix": "<script>"})
    pages = [await visitor.follow(listed.region.link(it[0])) for it in listed.region.rows()]
    pages += [await visitor.get(path(env, it)) for it in ("broken", "named")]
    pages += [listed, await visitor.get("/failures", {"namespace": env.namespace})]
    assert [len(it.region.all("script")) for it in pages] == [0] * 6
    assert all(evil in it.region.text for it in pages[:5])
    hang.released.set()


# --- What it is and has done


async def test_payloads_are_cut_and_can_be_downloaded_whole(env: Env, visitor: Visitor) -> None:
    env.processor.on_process(
        "large", answering(LARGE, aux_state=LARGE, response=LARGE), answering(complete=Complete())
    )
    await env.client.start("large", LARGE)
    page = await visitor.get(path(env, "large"))
    assert len(page.text.encode()) < 40_000
    wholes = [it for it in page.region.all("a") if it.text == "Download all of it"]
    assert len(wholes) == 4
    for link in wholes:
        answer = await visitor.follow(link)
        assert answer.text.encode() == LARGE
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["content-disposition"].startswith("attachment; filename=")


@pytest.mark.parametrize(
    ("query", "status", "named"),
    [
        ({"of": "odd"}, 400, "of"), ({"of": "event", "event": "x"}, 400, "event"),
        ({"of": "event", "event": "99"}, 404, "99"), ({"of": "args", "task": "999999"}, 404, "99"),
    ],
)  # fmt: skip
async def test_a_download_of_nothing_is_an_error(
    env: Env, visitor: Visitor, query: dict[str, str], status: int, named: str
) -> None:
    await env.running("p")
    place = {"namespace": env.namespace, "process": "p"}
    answer = await visitor.get("/payload", {**place, **query})
    assert (answer.status, named in answer.region.one(role="alert").text) == (status, True)


async def test_a_history_is_paged_in_both_directions(env: Env, visitor: Visitor) -> None:
    await env.running("p", answering(*(str(it).encode() for it in range(1, 36))))
    await env.client.call("p")

    def shown(answer: Answer) -> list[int]:
        items = answer.region.one("ol", class_="events").all("li")
        return [int(it["value"]) for it in items]

    newest = await visitor.get(path(env, "p"))
    older = await visitor.follow(newest.region.link("Older events"))
    oldest = await visitor.follow(older.region.link("Older events"))
    assert [shown(it) for it in (newest, older, oldest)] == [
        [*range(35, 20, -1)], [*range(20, 5, -1)], [*range(5, 0, -1)],
    ]  # fmt: skip
    assert shown(await visitor.follow(oldest.region.link("Newer events"))) == [*range(20, 5, -1)]
    assert shown(await visitor.follow(oldest.region.link("Newest events"))) == shown(newest)
    wrong = await visitor.get(path(env, "p"), {"events_before": "x"})
    assert (wrong.status, "events_before" in wrong.region.text) == (400, True)


async def test_tasks_are_paged_the_newest_first(env: Env, visitor: Visitor) -> None:
    await env.running("p")
    for it in range(28):
        await env.client.call("p", str(it).encode() * 400)

    def shown(answer: Answer) -> list[int]:
        rows = answer.region.one("table", class_="timeline").one("tbody").all("tr")
        return [int(it["id"].removeprefix("task-")) for it in rows if it.get("id")]

    newest = await visitor.get(path(env, "p"))
    oldest = await visitor.follow(newest.region.link("Older tasks"))
    trace = await env.client.trace("p")
    assert shown(newest) + shown(oldest) == [it.task_id for it in reversed(trace.tasks)]
    row = oldest.region.one("tr", id=f"task-{trace.tasks[2].task_id}")
    assert (await visitor.follow(row.all("a")[-1])).text == "1" * 400
    assert shown(await visitor.follow(oldest.region.link("Newest tasks"))) == shown(newest)


async def test_idle_time_between_tasks_is_folded() -> None:
    at = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)

    def task(
        task_id: int, started: dt.timedelta, ended: dt.timedelta | None, attempts: int = 1
    ) -> TaskTrace:
        return TaskTrace(
            task_id=task_id, type=TaskType.CALL, status=TaskStatus.FINISHED, created_at=at,
            scheduled_at=None, started_at=at + started, attempt_count=attempts, args=None,
            finished_at=None if ended is None else at + ended, idempotency_key="", response=None,
            context={}, error=None, events=(),
        )  # fmt: skip

    second, days = dt.timedelta(seconds=1), dt.timedelta(days=3)
    rows = rows_of(
        [task(3, days, None), task(2, 2 * second, 3 * second), task(1, 0 * second, second)]
    )
    assert [it.idle for it in rows] == [days - 3 * second, None, None]
    assert second < IDLE_MIN
    retried = rows_of([task(2, days, None, attempts=9), task(1, 0 * second, second)])
    assert [it.idle for it in retried] == [None, None], "between its attempts it was at work"


# --- Actions


async def test_actions_are_those_that_fit_the_status(env: Env, visitor: Visitor) -> None:
    await env.running("running")
    await env.broken("broken")
    await env.finished("finished")

    async def offered(process_id: str) -> set[str]:
        page = await visitor.get(path(env, process_id))
        links = page.region.all("p", class_="buttons")[0].all("a")
        return {it["href"].partition("do=")[2] for it in links}

    assert await offered("running") == {"call", "notify", "cancel", "terminate", "remove"}
    assert await offered("broken") == {
        "retry", "repair", "simple_repair", "cancel", "terminate", "remove",
    }  # fmt: skip
    assert await offered("finished") == {"remove"}


async def test_a_call_is_made_once_however_often_its_form_is_sent(
    env: Env, visitor: Visitor
) -> None:
    await env.running("p")
    form = (await visitor.get(path(env, "p"), {"do": "call"})).page.form(do="call")
    answers = [await visitor.send(form, args='{"a": 1}') for _ in range(2)]
    assert ['{ "a": 1 }' in note(it) for it in answers] == [True, True]
    assert [it.task.args for it in env.asked_for("p")[1:]] == [b'{"a": 1}']
    other = (await visitor.get(path(env, "p"), {"do": "call"})).page.form(do="call")
    assert other.fields["idempotency_key"] != form.fields["idempotency_key"]


@pytest.mark.parametrize("action", ["call", "notify"])
async def test_args_that_are_not_json_are_refused_and_kept(
    env: Env, visitor: Visitor, action: str
) -> None:
    await env.running("p")
    answer = await do(visitor, env, "p", action, args="{oops")
    assert (answer.status, "args" in alert(answer)) == (400, True)
    assert answer.page.form(do=action).fields["args"] == "{oops"
    assert len(env.asked_for("p")) == 1


async def test_a_notification_becomes_a_task(env: Env, visitor: Visitor) -> None:
    await env.running("p")
    answer = await do(visitor, env, "p", "notify", args="5")
    await env.asked("p", 2)
    trace = await env.client.trace("p")
    assert (trace.tasks[1].type, trace.tasks[1].args) == (TaskType.NOTIFY, b"5")
    assert str(trace.tasks[1].task_id) in note(answer)


@pytest.mark.parametrize("action", ["retry", "repair", "simple_repair"])
async def test_a_broken_process_is_brought_back(env: Env, visitor: Visitor, action: str) -> None:
    await env.broken("p")
    answer = await do(visitor, env, "p", action)
    assert note(answer)
    await env.client.call("p")
    assert (await env.client.get("p")).process.status is ProcessStatus.RUNNING


async def test_a_task_is_cancelled_from_its_row(env: Env, visitor: Visitor) -> None:
    hang, task_id = await env.busy("p")
    page = await visitor.get(path(env, "p"))
    row = page.region.one("tr", id=f"task-{task_id}")
    form = (await visitor.follow(row.link(f"Cancel task {task_id}"))).page.form(do="cancel")
    wrong = await visitor.send(form, confirmation="p", task_id="99999999999")
    assert (wrong.status, "99999999999" in alert(wrong)) == (404, True)
    odd = await visitor.send(form, confirmation="p", task_id="x")
    assert (odd.status, "task_id" in alert(odd)) == (400, True)
    done = await visitor.send(form, confirmation="p")
    assert note(done) == f"Task {task_id} was cancelled."
    trace = await env.client.trace("p")
    assert trace.tasks[1].status is TaskStatus.CANCELLED
    hang.released.set()


async def test_a_process_is_removed_once_its_name_is_typed(env: Env, visitor: Visitor) -> None:
    await env.running("p/1")
    refused = await do(visitor, env, "p%2F1", "remove", confirmation="p")
    assert (refused.status, "confirmation" in alert(refused)) == (400, True)
    removed = await do(visitor, env, "p%2F1", "remove", confirmation="p/1")
    assert note(removed) == "Process p/1 was removed."
    assert removed.region.one("h1").text == "Processes"
    status = await refusal(env.client.get("p/1"))
    assert status.reason == errors.ProcessNotFoundError.reason


async def test_a_refused_call_shows_the_answer_of_the_processor(env: Env, visitor: Visitor) -> None:
    await env.running("p", broken())
    answer = await do(visitor, env, "p", "call")
    assert answer.status == 409
    assert alert(answer)
    assert "in error" in answer.region.one("h1").text


async def test_a_wrong_form_token_changes_nothing(env: Env, visitor: Visitor) -> None:
    await env.running("p")
    form = (await visitor.get(path(env, "p"), {"do": "call"})).page.form(do="call")
    answer = await visitor.post(path(env, "p"), {**form.fields, "form_token": "x"})
    assert (answer.status, len(env.asked_for("p"))) == (400, 1)


async def test_a_process_named_by_two_dots_has_a_page_and_actions(
    env: Env, visitor: Visitor
) -> None:
    await env.running("..")
    listed = await visitor.get("/processes", {"namespace": env.namespace})
    page = await visitor.follow(listed.region.link(".."))
    form = (await visitor.follow(page.region.link("Terminate"))).page.form(do="terminate")
    ended = await visitor.send(form, reason="enough", confirmation="..")
    assert "finished" in ended.region.one("h1").text


# --- Rights


async def test_a_reader_sees_no_payload_no_action_and_no_other_namespace(guarded: Guarded) -> None:
    for namespace in (READABLE, HIDDEN):
        await guarded.admin.put("p", namespace=namespace, state=b'"secret"', metadata={"n": 1})
    reader, operator = guarded.visitors["reader"], guarded.visitors["operator"]
    page = await reader.get(f"/processes/{READABLE}/p")
    assert "you do not have the right to read them" in page.region.text
    assert "secret" not in page.text
    assert not [it for it in page.region.all("a") if "do=" in it["href"]]
    whole = {"namespace": READABLE, "process": "p", "of": "state"}
    assert (await reader.get("/payload", whole)).text == ""
    assert (await reader.get("/payload", {**whole, "namespace": HIDDEN})).status == 403
    assert (await reader.get(f"/processes/{HIDDEN}/p")).status == 403
    listed = await reader.get("/processes")
    assert {row[1] for row in listed.region.rows()} == {READABLE}
    form = (await operator.get(f"/processes/{READABLE}/p", {"do": "remove"})).page.form(do="remove")
    token = page.page.form(theme="system").fields.get("form_token", "")
    fields = {**form.fields, "form_token": token, "confirmation": "p"}
    refused = await reader.post(f"/processes/{READABLE}/p", fields)
    assert refused.status in {400, 403}
    assert (await guarded.admin.get("p")).process.status is ProcessStatus.RUNNING


async def test_an_operator_ends_a_process_by_its_own_name(guarded: Guarded) -> None:
    await guarded.admin.put("mine")
    path = f"/processes/{READABLE}/mine"
    operator = guarded.visitors["operator"]
    form = (await operator.get(path, {"do": "terminate"})).page.form(do="terminate")
    ended = await operator.send(form, reason="enough", confirmation="mine")
    assert "It was ended from outside" in ended.region.text
    entries = [it async for it in guarded.admin.access.audit()]
    assert ("Terminate", "token:operator") in [(it.method, it.principal) for it in entries]
