"""Access control: who is let in, what each role may do, and what a reader sees."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import grpc
import psycopg
import pytest
import pytest_asyncio
from google.protobuf import message_factory
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message

from progressor.api.guard.rules import RULES
from progressor.domain.access.rights import EVERYTHING, ROLES, Right, Role
from progressor.sdk import (
    BYTES,
    Client,
    NamespaceConfig,
    PermissionDeniedError,
    TokenNotFoundError,
    UnauthenticatedError,
)
from progressor.settings.config import load
from progressor.storage.access.first_admin import create_first_admin
from progressor.v1 import (
    access_service_pb2,
    bulk_service_pb2,
    gate_service_pb2,
    job_service_pb2,
    namespace_service_pb2,
    namespace_service_pb2_grpc,
    process_service_pb2,
    replica_service_pb2,
    schedule_service_pb2,
    step_service_pb2,
)
from tests.support.engine.points import eventually
from tests.support.engine.replica import Replica, running_replica, starting_replica
from tests.support.postgres.locks import until_blocked

pytestmark = pytest.mark.asyncio(loop_scope="module")

_MODULES = (
    access_service_pb2, bulk_service_pb2, gate_service_pb2, job_service_pb2,
    namespace_service_pb2, process_service_pb2, replica_service_pb2, schedule_service_pb2,
    step_service_pb2,
)  # fmt: skip
RPCS: dict[str, MethodDescriptor] = {
    method.name: method
    for module in _MODULES
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}
OWN, OTHER = "orders", "payments"
SETTINGS = {"access.enabled": "true"}
_MAY_STEP = (Role.CALLER, Role.PROCESSOR)
_DENIED = grpc.StatusCode.PERMISSION_DENIED


class Engine:
    """An engine with access control, its administrator, and a token for each role in OWN."""

    def __init__(self, replica: Replica, admin_token: str) -> None:
        self.replica = replica
        self.admin = self.client(admin_token)
        self.admin_token = admin_token
        self.tokens: dict[Role | None, str] = {}

    def client(self, token: str | None, **options: Any) -> Client:  # of the client
        return Client(self.replica.address, namespace=OWN, token=token, codec=BYTES, **options)

    async def token_of(self, name: str, *roles: Role, namespace: str = OWN) -> str:
        _, text = await self.admin.access.create_token(name)
        for role in roles:
            await self.admin.access.add_binding(f"token:{name}", role, namespace)
        return text


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(database: str) -> AsyncIterator[Engine]:
    async with running_replica(database, SETTINGS) as replica:
        config = load(environment={}, flags={"database.dsn": database}).database
        token = await asyncio.to_thread(create_first_admin, config, database, "admin")
        engine = Engine(replica, token)
        async with engine.admin:
            await _let_in(engine.admin)
            for namespace in (OWN, OTHER):
                await engine.admin.namespaces.create(
                    NamespaceConfig(name=namespace, processor_targets=("x:1",))
                )
                await engine.admin.put("kept", state=b"a secret", namespace=namespace)
            engine.tokens = {role: await engine.token_of(f"as-{role}", role) for role in Role}
            engine.tokens[None] = await engine.token_of("nobody")
            yield engine


async def _let_in(client: Client) -> None:
    """Wait until a change in the database has reached the replica, with a heartbeat."""

    async def is_let_in() -> bool:
        return not await _is_refused(client)

    await eventually(is_let_in)


async def test_an_engine_serves_once_it_knows_who_may_do_what(
    database: str, engine: Engine
) -> None:
    with psycopg.connect(database) as locking, psycopg.connect(database, autocommit=True) as seeing:
        locking.execute("LOCK TABLE progressor.access_tokens")
        async with starting_replica(database, SETTINGS) as late:
            await until_blocked(seeing)
            assert not late.engine.serving.is_set()
            locking.rollback()
            await late.engine.serving.wait()
            async with Client(
                late.address, namespace=OWN, token=engine.admin_token, codec=BYTES, repeats=False
            ) as client:
                assert (await client.access.who_am_i()).principal == "token:admin"


# --- The matrix


async def test_every_rpc_has_a_rule() -> None:
    assert RULES.keys() == RPCS.keys()


async def test_what_changes_something_takes_more_than_the_right_to_read() -> None:
    changing = {
        name: RULES[name].right
        for name in RPCS
        if not name.startswith(("Get", "List", "Watch", "Trace", "Count", "Preview", "Await"))
    }

    assert [name for name, right in changing.items() if right is Right.READ] == []
    assert [name for name, right in changing.items() if right is None] == [
        "WhoAmI", "CheckAccess", "Session",
    ]  # fmt: skip


def _request(rpc: str, namespace: str) -> Message:
    """Return a request that is about a namespace wherever it can name one."""
    request = message_factory.GetMessageClass(RPCS[rpc].input_type)()
    _name(request, namespace, is_top=True)
    return request


def _name(message: Any, namespace: str, *, is_top: bool) -> None:  # of many
    for field in message.DESCRIPTOR.fields:
        is_text = field.type == FieldDescriptor.TYPE_STRING
        is_space = message.DESCRIPTOR.name == "Namespace" or (
            is_top and message.DESCRIPTOR.file.name.endswith("namespace_service.proto")
        )
        if is_text and (field.name == "namespace" or (field.name == "name" and is_space)):
            setattr(message, field.name, namespace)
        elif field.name == "filter" or (field.name == "namespace" and not is_text):
            _name(getattr(message, field.name), namespace, is_top=False)
    if message.DESCRIPTOR.name == "CheckAccessRequest":
        message.rpc = "Start"


def _is_allowed(rpc: str, role: Role | None, namespace: str) -> bool:
    """Return whether someone with a role in OWN may send a request about a namespace."""
    rule = RULES[rpc]
    if rule.right is None:
        return True
    if role is None or rule.right not in ROLES[role]:
        return False
    places = tuple(rule.places(_request(rpc, namespace)))
    return not places or (namespace == OWN and EVERYTHING not in places)


UNARY = [name for name, it in RPCS.items() if not it.client_streaming]


@pytest.mark.parametrize("rpc", UNARY)
async def test_each_role_may_do_what_its_rights_say(engine: Engine, rpc: str) -> None:
    found = {}
    for role, namespace in itertools.product([None, *Role], [OWN, OTHER, ""]):
        code = await _code(engine, rpc, namespace, engine.tokens[role])
        found[role, namespace] = code is not _DENIED

    assert found == {
        (role, namespace): _is_allowed(rpc, role, namespace)
        for role, namespace in itertools.product([None, *Role], [OWN, OTHER, ""])
    }


@pytest.mark.parametrize("rpc", UNARY)
async def test_nobody_is_let_in_without_credentials(engine: Engine, rpc: str) -> None:
    garbage = ("", "garbage", "prg_000000000000_" + "0" * 64)

    codes = [await _code(engine, rpc, OWN, token) for token in (None, *garbage)]

    assert codes == [grpc.StatusCode.UNAUTHENTICATED] * 4


async def _code(engine: Engine, rpc: str, namespace: str, token: str | None) -> grpc.StatusCode:
    """Send a request that is wrong in all else, and return its code."""
    method = RPCS[rpc]
    request = _request(rpc, namespace)
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    async with grpc.aio.insecure_channel(engine.replica.address) as channel:
        create: Any = channel.unary_stream if method.server_streaming else channel.unary_unary
        call = create(
            f"/{method.containing_service.full_name}/{rpc}",
            request_serializer=type(request).SerializeToString,
        )(request, metadata=metadata, timeout=10)
        code: grpc.StatusCode = await call.code()
        return code


# --- Changes, sessions, payloads


async def test_a_revoked_token_is_refused_by_every_replica_within_a_heartbeat(
    engine: Engine, database: str
) -> None:
    created, text = await engine.admin.access.create_token("leaver")
    async with (
        running_replica(database, {**SETTINGS, "replica.name": "other"}) as other,
        Client(other.address, token=text) as elsewhere,
        engine.client(text) as here,
    ):
        await _let_in(elsewhere)
        await engine.admin.access.revoke_token(created.token_id)

        with pytest.raises(UnauthenticatedError):
            await here.access.who_am_i()
        await eventually(lambda: _is_refused(elsewhere))


async def test_a_token_ends_with_its_lifetime(engine: Engine) -> None:
    _, text = await engine.admin.access.create_token("brief", lifetime=1)
    async with engine.client(text) as client:
        assert (await client.access.who_am_i()).principal == "token:brief"
        await eventually(lambda: _is_refused(client))


async def _is_refused(client: Client) -> bool:
    try:
        await client.access.who_am_i()
    except UnauthenticatedError:
        return True
    return False


async def test_each_call_of_a_session_is_checked(engine: Engine) -> None:
    text = await engine.token_of("caller-of-a-session", Role.CALLER)
    binding = ("token:caller-of-a-session", Role.CALLER, OWN)
    async with engine.client(text, session=True) as client:
        with pytest.raises(PermissionDeniedError) as denied:
            await client.start("elsewhere", idempotency_key="k", namespace=OTHER)
        await client.start("here", accept_only=True, idempotency_key="k")
        await engine.admin.access.remove_binding(*binding)
        with pytest.raises(PermissionDeniedError):
            await client.notify("here", idempotency_key="n")

    assert (denied.value.right, denied.value.namespace) == ("call", OTHER)


async def test_a_session_is_not_opened_without_credentials(engine: Engine) -> None:
    async with engine.client(None, session=True) as client:
        with pytest.raises(UnauthenticatedError):
            await client.get("here")


async def test_payloads_are_shown_only_to_whom_may_read_them(engine: Engine) -> None:
    reader = await engine.token_of("a-reader", Role.READER, namespace="*")
    payload_reader = await engine.token_of("b-reader", Role.READER, namespace="*")
    await engine.admin.access.add_binding("token:b-reader", Role.PAYLOAD_READER, OWN)
    async with engine.client(reader) as first, engine.client(payload_reader) as second:
        assert (await first.get("kept")).process.state is None
        assert (await second.get("kept")).process.state == b"a secret"
        assert (await second.get("kept", namespace=OTHER)).process.state is None


async def test_lists_show_what_one_may_see(engine: Engine) -> None:
    async with engine.client(engine.tokens[Role.READER]) as client:
        assert [it.name async for it in client.namespaces.list()] == [OWN]
        activity = await client.replicas.activity()

    assert {it.namespace for it in activity.queues} <= {OWN}


async def test_lists_over_all_namespaces_show_what_one_may_see(engine: Engine) -> None:
    nowhere = await engine.token_of("reads-nothing", Role.READER, namespace="gone-*")
    seen = []
    for token in (engine.tokens[Role.READER], nowhere, engine.admin_token):
        async with engine.client(token) as client:
            listed = {it.namespace async for it in client.list(all_namespaces=True)}
            counted = await client.count(all_namespaces=True)
            matched = await client.count(all_namespaces=True, id_prefix="kept")
            failures = [it async for it in client.failures(all_namespaces=True)]
            namespaces = {it.namespace for it in counted.namespaces}
            seen.append((listed, namespaces & {OWN, OTHER}, matched.count, failures))

    assert seen == [
        ({OWN}, {OWN}, 1, []),
        (set(), set(), 0, []),
        ({OWN, OTHER}, {OWN, OTHER}, 2, []),
    ]


async def test_the_answer_of_a_refusal_says_nothing_of_its_reason(engine: Engine) -> None:
    _, text = await engine.admin.access.create_token("shop")
    wrong = text[:-1] + ("0" if text[-1] != "0" else "1")
    async with engine.client(wrong) as client:
        with pytest.raises(UnauthenticatedError) as refused:
            await client.access.who_am_i()

    assert str(refused.value) == "the request has no valid credentials"


async def test_an_administrator_asks_why_another_may_do_something(engine: Engine) -> None:
    check = engine.admin.access.check
    denied = await check("Repair", namespace=OWN, principal="token:as-caller")
    allowed = await check("Start", namespace=OWN, principal="token:as-caller")
    async with engine.client(engine.tokens[Role.CALLER]) as client:
        own = await client.access.check("Start", namespace=OWN)
        with pytest.raises(PermissionDeniedError):
            await client.access.check("Start", namespace=OWN, principal="token:admin")

    assert (denied.is_allowed, denied.right) == (False, "operate")
    assert allowed.binding is not None
    assert (allowed.binding.principal, allowed.binding.role) == ("token:as-caller", Role.CALLER)
    assert own == allowed


async def test_who_grants_is_remembered_and_what_is_not_there_is_named(engine: Engine) -> None:
    access = engine.admin.access
    first = await access.add_binding("cert:spiffe://corp/shop/*", Role.CALLER, "shop-*")
    again = await access.add_binding("cert:spiffe://corp/shop/*", Role.CALLER, "shop-*")
    pages = [it async for it in access.bindings(page_size=1)]
    with pytest.raises(TokenNotFoundError):
        await access.revoke_token("000000000000")

    assert first == again
    assert first.created_by == "token:admin"
    assert first in pages
    assert len(pages) == len(set(pages))


async def test_an_answer_is_not_given_to_whom_may_not_have_it_any_more(engine: Engine) -> None:
    created, text = await engine.admin.access.create_token("waiter")
    await engine.admin.access.add_binding("token:waiter", Role.CALLER, OWN)
    async with engine.client(text) as client:
        await client.start("slow", accept_only=True, idempotency_key="k")
        waiting: asyncio.Task[object] = asyncio.create_task(client.result("slow"))
        await engine.replica.points.wait("process_awaited")
        await engine.admin.access.revoke_token(created.token_id)
        await engine.admin.terminate("slow", reason="why")

        with pytest.raises(UnauthenticatedError):
            await waiting


async def test_a_caller_cannot_write_memos_of_steps(engine: Engine) -> None:
    codes = [await _code(engine, "Remember", OWN, engine.tokens[role]) for role in _MAY_STEP]

    assert codes == [grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INVALID_ARGUMENT]


async def test_an_administrator_of_one_namespace_gives_no_credentials_of_the_engine_away(
    engine: Engine,
) -> None:
    async with engine.client(engine.tokens[Role.ADMIN]) as client:
        with pytest.raises(PermissionDeniedError) as denied:
            await client.namespaces.update(
                NamespaceConfig(
                    name=OWN, processor_targets=("x:1",), processor_credentials="internal"
                )
            )

    assert denied.value.namespace == "*"


async def test_the_token_of_a_page_names_nothing_that_is_not_seen(engine: Engine) -> None:
    text = await engine.token_of("pager", Role.READER, namespace=OTHER)
    request = namespace_service_pb2.ListNamespacesRequest(page_size=1)
    async with grpc.aio.insecure_channel(engine.replica.address) as channel:
        stub = namespace_service_pb2_grpc.NamespaceServiceStub(channel)
        page = await stub.ListNamespaces(request, metadata=(("authorization", f"Bearer {text}"),))

    assert ([it.name for it in page.namespaces], page.next_page_token) == ([OTHER], "")


async def test_a_long_namespace_is_cut_in_the_refusal(engine: Engine) -> None:
    async with engine.client(engine.tokens[Role.READER]) as client:
        with pytest.raises(PermissionDeniedError) as denied:
            await client.get("p", namespace="v" * 1_000_000)

    assert len(str(denied.value)) < 500
