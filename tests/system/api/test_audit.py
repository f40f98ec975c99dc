"""The audit over gRPC: what leaves an entry, what the entry says, and who may see it."""

import asyncio
import datetime as dt
import hashlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest
import pytest_asyncio
from psycopg.rows import namedtuple_row

from progressor import errors
from progressor.api.guard.rules import CALLS, CHANGES
from progressor.sdk import (
    AuditFilter,
    BulkKind,
    Client,
    Every,
    Graph,
    JobState,
    LogLevel,
    NamespaceConfig,
    PermissionDeniedError,
    ProcessStatus,
    Role,
    ScheduledStart,
    ScheduleSpec,
    Tls,
    UnauthenticatedError,
)
from progressor.settings.config import load
from progressor.storage.access.audit import NOTES_BURST
from progressor.storage.access.first_admin import create_first_admin
from tests.support.api.issuer import AUDIENCE, running_issuer
from tests.support.certificates import Pki
from tests.support.engine.points import eventually
from tests.support.engine.replica import (
    Env,
    Replica,
    answering,
    broken,
    open_env,
    running_replica,
)
from tests.support.postgres.locks import until_blocked

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET = b"a planted secret"
HOUR = dt.timedelta(hours=1)
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def replica(database: str) -> AsyncIterator[Replica]:
    async with running_replica(database) as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def env(replica: Replica) -> AsyncIterator[Env]:
    async with open_env(replica, one_at_a_time=False) as found:
        yield found


async def entries(database: str, **facts: str) -> list[Any]:
    """Return the entries with these facts, in their order."""
    connection: Any = await psycopg.AsyncConnection.connect(
        database, autocommit=True, row_factory=namedtuple_row
    )
    async with connection:
        found = await connection.execute("SELECT * FROM progressor.audit_entries ORDER BY entry_id")
        return [
            row
            async for row in found
            if all(row.entry[name] == value for name, value in facts.items())
        ]


# --- Each request that changes something

Example = Callable[[Env], Awaitable[object]]


def _spec(every: int = 3600) -> ScheduleSpec:
    return ScheduleSpec(target=ScheduledStart(args=SECRET), times=Every(every))


def _graph() -> Graph:
    graph = Graph()
    graph.node("a", SECRET)
    return graph


async def _retry_job(env: Env) -> object:
    env.processor.on_process("failing/a", broken(), answering())
    await env.client.jobs.submit("failing", _graph())
    job = await env.client.jobs.wait("failing")
    assert job.state is JobState.FAILED
    return await env.client.jobs.retry("failing")


async def _revoke_token(env: Env) -> object:
    token, _ = await env.client.access.create_token("o")
    return await env.client.access.revoke_token(token.token_id)


async def _cancel(env: Env) -> object:
    _, task_id = await env.busy("o")
    return await env.client.cancel("o", task_id=task_id)


def _after(prepare: Example, act: Example) -> Example:
    async def run(env: Env) -> object:
        await prepare(env)
        return await act(env)

    return run


def _on_broken(act: Example) -> Example:
    return _after(lambda env: env.broken("o", answering()), act)


def _on_schedule(act: Example) -> Example:
    return _after(lambda env: env.client.schedules.create("o", _spec(), paused=True), act)


def _config(env: Env, **fields: Any) -> NamespaceConfig:
    return NamespaceConfig(name=f"{env.namespace}-o", processor_targets=("h:1",), **fields)


def _on_namespace(act: Example) -> Example:
    return _after(lambda env: env.client.namespaces.create(_config(env)), act)


BINDING = ("token:o", Role.READER, "o")
EXAMPLES: Mapping[str, Example] = {
    "Repair": _on_broken(lambda env: env.client.repair("o", SECRET)),
    "Retry": _on_broken(lambda env: env.client.retry("o")),
    "SimpleRepair": _on_broken(lambda env: env.client.simple_repair("o")),
    "Put": lambda env: env.client.put("o", state=SECRET, metadata={"is": "no payload"}),
    "Remove": _after(
        lambda env: env.client.put("o", state=SECRET), lambda env: env.client.remove("o")
    ),
    "Terminate": _on_broken(lambda env: env.client.terminate("o", reason="why")),
    "Cancel": _cancel,
    "SubmitJob": lambda env: env.client.jobs.submit("o", _graph()),
    "CancelJob": _after(
        lambda env: env.client.jobs.submit("o", _graph()),
        lambda env: env.client.jobs.cancel("o", cause="why"),
    ),
    "RetryJob": _retry_job,
    "SetGate": lambda env: env.client.gates.set("o", capacity=3),
    "DeleteGate": _after(
        lambda env: env.client.gates.set("o", capacity=3), lambda env: env.client.gates.delete("o")
    ),
    "CreateSchedule": lambda env: env.client.schedules.create("o", _spec(), paused=True),
    "UpdateSchedule": _on_schedule(lambda env: env.client.schedules.update("o", _spec(7200))),
    "PauseSchedule": _on_schedule(lambda env: env.client.schedules.pause("o", note="why")),
    "ResumeSchedule": _on_schedule(lambda env: env.client.schedules.resume("o")),
    "DeleteSchedule": _on_schedule(lambda env: env.client.schedules.delete("o")),
    "TriggerSchedule": _on_schedule(lambda env: env.client.schedules.trigger("o")),
    # Paused, so that its runs start nothing when the test is over.
    "BackfillSchedule": _after(
        lambda env: env.client.namespaces.pause(env.namespace, reason="why"),
        _on_schedule(lambda env: env.client.schedules.backfill("o", NOON, NOON + 2 * HOUR)),
    ),
    "CreateNamespace": lambda env: env.client.namespaces.create(_config(env)),
    "UpdateNamespace": _on_namespace(
        lambda env: env.client.namespaces.update(_config(env, worker_count_max=7))
    ),
    "PauseNamespace": _on_namespace(
        lambda env: env.client.namespaces.pause(_config(env).name, reason="why")
    ),
    "ResumeNamespace": _after(
        _on_namespace(lambda env: env.client.namespaces.pause(_config(env).name, reason="why")),
        lambda env: env.client.namespaces.resume(_config(env).name),
    ),
    "DeleteNamespace": _on_namespace(lambda env: env.client.namespaces.delete(_config(env).name)),
    "StartBulk": lambda env: env.client.bulk.start(
        BulkKind.NOTIFY, SECRET, operation_id=f"{env.namespace}-o"
    ),
    "StopBulk": _after(
        lambda env: env.client.bulk.start(
            BulkKind.NOTIFY, SECRET, operation_id=f"{env.namespace}-o", follow=True
        ),
        lambda env: env.client.bulk.stop(f"{env.namespace}-o", reason="why"),
    ),
    "AddBinding": lambda env: env.client.access.add_binding(*BINDING),
    "RemoveBinding": lambda env: env.client.access.remove_binding(*BINDING),
    "CreateToken": lambda env: env.client.access.create_token("o"),
    "RevokeToken": _revoke_token,
    "SetLogLevel": lambda env: env.client.replicas.set_log_level(LogLevel.INFO),
}
"""A request of each kind, which changes something; that of an object is called o."""

CHANGED: Mapping[str, tuple[Any, Any]] = {
    "Repair": ({"status": "error"}, ...),
    "Retry": ({"status": "error"}, ...),
    "SimpleRepair": ({"status": "error"}, {"status": "running"}),
    "Put": (None, ...),
    "Remove": ({"status": "running"}, None),
    "Terminate": ({"status": "error"}, {"status": "finished"}),
    "CancelJob": ({"state": "running"}, {"state": "cancelled"}),
    "RetryJob": ({"state": "failed"}, {"state": "running"}),
    "SetGate": (None, {"capacity": 3}),
    "DeleteGate": ({"capacity": 3}, None),
    "BackfillSchedule": (None, {"queued_count": 2}),
    "RemoveBinding": (..., None),
    "SetLogLevel": (None, None),
}
"""What entries say of before and after, where that is short; ...: something."""


async def test_there_is_an_example_of_each_request_that_changes_something() -> None:
    assert EXAMPLES.keys() == CHANGES


@pytest.mark.parametrize("rpc", EXAMPLES)
async def test_each_change_has_one_entry_without_payloads(
    env: Env, database: str, rpc: str
) -> None:
    before = {row.entry_id for row in await entries(database, method=rpc)}

    await EXAMPLES[rpc](env)
    if rpc == "SetLogLevel":
        await eventually(lambda: _has_more(database, rpc, before))
    [row] = [row for row in await entries(database, method=rpc) if row.entry_id not in before]

    was, became = CHANGED.get(rpc, (..., ...))
    assert row.result == "OK"
    assert row.before == was or (was is ... and (row.before or row.after))
    assert row.after == became or (became is ... and (row.before or row.after))
    assert (row.entry["principal"], row.entry["binding"]) == ("anonymous", "")
    assert row.entry["peer"].startswith(("ipv4:127.0.0.1:", "ipv6:"))
    assert row.entry["namespace"] in {"", env.namespace, _config(env).name}
    assert row.entry["object_id"]
    assert SECRET.hex() not in str(row)
    assert SECRET.decode() not in str(row)


async def _has_more(database: str, rpc: str, before: set[int], **facts: str) -> bool:
    return any(row.entry_id not in before for row in await entries(database, method=rpc, **facts))


async def test_what_changes_nothing_has_no_entry(env: Env, database: str) -> None:
    await env.running("o")
    await env.client.put("p", status=ProcessStatus.RUNNING, idempotency_key="k")
    await env.client.put("p", status=ProcessStatus.RUNNING, idempotency_key="k")
    await env.client.namespaces.resume(env.namespace)

    found = [row.entry["method"] for row in await entries(database, namespace=env.namespace)]
    assert found == ["CreateNamespace", "Put"]


async def test_starts_calls_and_notifies_have_entries_if_wished(database: str) -> None:
    async with (
        running_replica(database, {"audit.calls": "true"}) as recording,
        open_env(recording, one_at_a_time=False) as env,
    ):
        await env.running("o")
        await env.client.call("o", SECRET)
        await env.client.notify("o", SECRET)
        found = await entries(database, namespace=env.namespace, object_id="o")

    assert {row.entry["method"] for row in found} == CALLS
    assert [row.after.keys() for row in found] == [{"task_id"}] * 3


async def test_a_failed_request_has_one_entry_with_the_reason(env: Env, database: str) -> None:
    await env.finished("o")
    with pytest.raises(errors.ProcessFinishedError):
        await env.client.terminate("o", reason="bad\tthing")
    await eventually(lambda: _has_more(database, "Terminate", set(), namespace=env.namespace))

    found = await entries(database, method="Terminate", namespace=env.namespace)
    assert [(it.result, it.before, it.after) for it in found] == [("PROCESS_FINISHED", None, None)]
    assert {it.entry["reason"] for it in found} == {"bad thing"}


async def test_entries_are_listed_by_what_they_say(env: Env) -> None:
    await env.client.put("a", idempotency_key="k")
    await env.client.put("b")
    await env.client.terminate("b", reason="why")
    list_all = env.client.access.audit

    whole = [it async for it in list_all(AuditFilter(namespace=env.namespace), page_size=1)]
    wanted = AuditFilter(namespace=env.namespace, method="Terminate", object_id="b", result="OK")
    [terminated] = [it async for it in list_all(wanted)]

    assert [it.method for it in whole] == ["Terminate", "Put", "Put", "CreateNamespace"]
    assert terminated.entry_id == whole[0].entry_id  # it may have been sealed in between
    assert (terminated.reason, terminated.before, terminated.after) == (
        "why", '{"status": "running"}', '{"status": "finished"}',
    )  # fmt: skip
    earlier = AuditFilter(namespace=env.namespace, until=whole[-1].written_at)
    assert [it async for it in list_all(earlier)] == []


async def test_who_follows_sees_each_entry_once_in_the_order_of_the_chain(env: Env) -> None:
    wanted = AuditFilter(namespace=env.namespace)
    following = env.client.access.follow_audit(wanted, after=0)
    first = await anext(following)
    await env.client.put("a")
    second = await anext(following)
    head = await env.client.access.audit_head()
    again = env.client.access.follow_audit(wanted, after=first.number)

    assert [first.method, second.method] == ["CreateNamespace", "Put"]
    assert first.number < second.number <= head.number
    assert await anext(again) == second
    assert len(second.hash) == len(head.hash) == 64


# --- With access control


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded(database: str) -> AsyncIterator[tuple[Replica, Client]]:
    """Return a replica with access control, and a client of its administrator."""
    config = load(environment={}, flags={"database.dsn": database}).database
    text = await asyncio.to_thread(create_first_admin, config, database, "root")
    async with (
        running_replica(database, {"access.enabled": "true"}) as found,
        Client(found.address, namespace="mine", token=text) as admin,
    ):
        await eventually(lambda: _is_let_in(admin))
        for name in ("mine", "yours"):
            await admin.namespaces.create(NamespaceConfig(name=name, processor_targets=("h:1",)))
        yield found, admin


async def _is_let_in(client: Client) -> bool:
    try:
        await client.access.who_am_i()
    except errors.ProgressorError:
        return False
    return True


async def test_an_entry_names_principal_credential_and_binding(
    guarded: tuple[Replica, Client], database: str
) -> None:
    replica, admin = guarded
    token, text = await admin.access.create_token("ops")
    await admin.access.add_binding("token:ops", Role.OPERATOR, "min*")
    async with Client(replica.address, namespace="mine", token=text) as client:
        await client.put("named")
    [row] = await entries(database, object_id="named")
    [created] = await entries(database, method="CreateToken", object_id=token.token_id)

    assert row.entry["principal"] == "token:ops"
    assert row.entry["credential"] == token.token_id
    assert row.entry["binding"] == "operator in min* for token:ops"
    assert created.entry["principal"] == "token:root"
    assert text.rpartition("_")[2] not in str(await entries(database))
    [first] = await entries(database, method="AccessInit")
    assert first.result == "OK"


_ISSUER = """
[access]
enabled = true
[access.issuers.corp]
issuer = "{url}"
audiences = ["{audience}"]
algorithms = ["RS256"]
"""


async def test_an_entry_names_the_certificate_or_the_identity_token(
    guarded: tuple[Replica, Client], database: str, tmp_path: Path
) -> None:
    _, admin = guarded
    for principal in ("cert:spiffe://corp/shop", "user:corp/ada"):
        await admin.access.add_binding(principal, Role.OPERATOR, "mine")
    pki, file = Pki(tmp_path), tmp_path / "progressor.toml"
    server, shop = pki.issue("server"), pki.issue("shop", uris=["spiffe://corp/shop"])
    flags = {"server.tls_certificate": str(server.certificate), "server.tls_key": str(server.key),
             "server.tls_client_ca": str(pki.ca)}  # fmt: skip
    with running_issuer() as issuer:
        file.write_text(_ISSUER.format(url=issuer.url, audience=AUDIENCE))
        named, nameless = issuer.token(jti="id-7"), issuer.token(jti="7" * 10_000)
        tls = Tls(ca=pki.ca, certificate=shop.certificate, key=shop.key)
        async with running_replica(database, flags, file=file) as replica:
            for number, token in enumerate((None, named, nameless)):
                async with Client(
                    replica.address, namespace="mine", token=token, tls=tls
                ) as client:
                    await eventually(lambda: _is_let_in(client))
                    await client.put(f"by {number}")

    assert shop.certificate is not None
    der = ssl.PEM_cert_to_DER_cert(shop.certificate.read_text())
    expected = [
        ("cert:spiffe://corp/shop", hashlib.sha256(der).hexdigest()),
        ("user:corp/ada", "id-7"),
        ("user:corp/ada", hashlib.sha256(nameless.encode()).hexdigest()),
    ]
    found = [await entries(database, object_id=f"by {number}") for number in range(3)]
    assert [[(it.entry["principal"], it.entry["credential"]) for it in each] for each in found] == [
        [each] for each in expected
    ]


async def test_of_two_who_revoke_a_token_at_once_one_has_an_entry(
    guarded: tuple[Replica, Client], database: str
) -> None:
    _, admin = guarded
    token, _ = await admin.access.create_token("twice")
    with psycopg.connect(database) as locking, psycopg.connect(database, autocommit=True) as seeing:
        locking.execute(
            "SELECT FROM progressor.access_tokens WHERE token_id = %s FOR UPDATE", [token.token_id]
        )
        async with asyncio.TaskGroup() as group:
            for _ in range(2):
                group.create_task(admin.access.revoke_token(token.token_id))
            await until_blocked(seeing, 2)
            locking.rollback()

    assert len(await entries(database, method="RevokeToken", object_id=token.token_id)) == 1


async def test_a_denied_request_has_an_entry(
    guarded: tuple[Replica, Client], database: str
) -> None:
    replica, admin = guarded
    _, text = await admin.access.create_token("weak")
    async with Client(replica.address, namespace="mine", token=text) as client:
        with pytest.raises(PermissionDeniedError):
            await client.terminate("p", reason="why")
        with pytest.raises(PermissionDeniedError):
            await client.get("p")
    async with Client(replica.address, namespace="mine", token="garbage", session=False) as client:
        with pytest.raises(UnauthenticatedError):
            await client.remove("p")
    await eventually(lambda: _has_more(database, "Remove", set(), namespace="mine"))

    found = await entries(database, namespace="mine", object_id="p")
    assert [(it.entry["method"], it.entry["principal"], it.result) for it in found] == [
        ("Terminate", "token:weak", "PERMISSION_DENIED"),
        ("Get", "token:weak", "PERMISSION_DENIED"),
        ("Remove", "", "UNAUTHENTICATED"),
    ]


async def test_a_flood_of_denials_is_counted_and_not_stored(
    guarded: tuple[Replica, Client], database: str
) -> None:
    replica, _ = guarded
    count = 4 * NOTES_BURST
    async with Client(replica.address, namespace="flood", token="garbage", session=False) as client:
        gets = [client.get("p") for _ in range(count)]
        ends = await asyncio.gather(*gets, return_exceptions=True)

    async def sum_is_right() -> bool:
        stored = len(await entries(database, namespace="flood"))
        left_out = sum(it.left_out for it in await entries(database, method=""))
        return bool(stored + left_out >= count)

    await eventually(sum_is_right)
    assert all(isinstance(it, UnauthenticatedError) for it in ends)
    assert len(await entries(database, namespace="flood")) < count / 2


async def test_one_sees_the_entries_of_the_namespaces_of_which_one_is_an_admin(
    guarded: tuple[Replica, Client],
) -> None:
    replica, admin = guarded
    _, text = await admin.access.create_token("part")
    await admin.access.add_binding("token:part", Role.ADMIN, "mine")
    async with Client(replica.address, namespace="mine", token=text) as client:
        await client.put("seen")
        seen = {it.namespace async for it in client.access.audit()}
        followed, _ = await client.access.audit_behind(0)
        with pytest.raises(PermissionDeniedError):
            await anext(client.access.audit(AuditFilter(namespace="yours")))
        with pytest.raises(PermissionDeniedError):
            await client.access.audit_head()
    everything = {it.namespace async for it in admin.access.audit()}

    assert seen == {"mine"}
    assert {it.namespace for it in followed} <= {"mine"}
    assert everything >= {"", "mine", "yours"}
