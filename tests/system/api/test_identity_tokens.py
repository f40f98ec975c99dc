"""Tokens of OpenID Connect: who is let in by an issuer, and what ends with their tokens."""

import asyncio
import stat
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from progressor.cli.input import contexts
from progressor.cli.main import main
from progressor.domain.access.rights import Role
from progressor.domain.processes.process import process_key
from progressor.sdk import (
    BYTES,
    Client,
    Graph,
    NamespaceConfig,
    PermissionDeniedError,
    ProcessFinishedError,
    UnauthenticatedError,
)
from progressor.settings.config import load
from progressor.storage.access.first_admin import create_first_admin
from progressor.v1 import access_service_pb2 as pb
from progressor.v1.access_service_pb2_grpc import AccessServiceStub
from tests.support.api.issuer import TestIssuer, running_issuer
from tests.support.engine.points import eventually
from tests.support.engine.replica import Replica, running_replica

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore::joserfc.errors.SecurityWarning"),
]

CONFIG = """
[access]
enabled = true

[access.issuers.corp]
issuer = "{url}"
audiences = ["progressor", "other"]
algorithms = ["RS256", "PS256", "ES256", "EdDSA"]
groups_claim = "groups"
clock_skew_seconds = 30
"""
SPACE = "orders"
_NOT_PLAIN = "the request has no valid credentials"


class Engine:
    def __init__(self, replica: Replica, issuer: TestIssuer, admin: Client) -> None:
        self.replica, self.issuer, self.admin = replica, issuer, admin

    def client(self, token: Any, **options: Any) -> Client:
        return Client(self.replica.address, namespace=SPACE, token=token, codec=BYTES, **options)

    async def who(self, token: str) -> Any:
        async with self.client(token) as client:
            return await client.access.who_am_i()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(database: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Engine]:
    file: Path = tmp_path_factory.mktemp("identity") / "progressor.toml"
    config = load(environment={}, flags={"database.dsn": database}).database
    admin_token = await asyncio.to_thread(create_first_admin, config, database, "admin")
    with running_issuer() as issuer:
        await asyncio.to_thread(file.write_text, CONFIG.format(url=issuer.url))
        async with (
            running_replica(database, file=file) as replica,
            Client(replica.address, token=admin_token, codec=BYTES) as admin,
        ):
            found = Engine(replica, issuer, admin)
            await eventually(lambda: _is_let_in(admin))
            await admin.namespaces.create(NamespaceConfig(name=SPACE, processor_targets=("x:1",)))
            await admin.access.add_binding("user:corp/ada", Role.CALLER, SPACE)
            await admin.access.add_binding("group:corp/staff", Role.READER, SPACE)
            yield found


async def _is_let_in(client: Client) -> bool:
    try:
        await client.access.who_am_i()
    except UnauthenticatedError:
        return False
    return True


@pytest.mark.parametrize(
    ("kid", "algorithm"),
    [("rsa", "RS256"), ("rsa", "PS256"), ("ec", "ES256"), ("ed", "EdDSA")],
)
async def test_a_token_names_its_principal_and_groups(
    engine: Engine, kid: str, algorithm: str
) -> None:
    found = await engine.who(
        engine.issuer.token(kid, algorithm, groups=["staff", "a\nb", 7, "x" * 300])
    )

    assert (found.principal, found.groups) == ("user:corp/ada", ("group:corp/staff",))
    assert {it.role for it in found.bindings} == {Role.CALLER, Role.READER}


async def test_bindings_of_groups_count(engine: Engine) -> None:
    async with engine.client(engine.issuer.token(sub="bob", groups="staff")) as client:
        assert [it async for it in client.list()] == []
        with pytest.raises(PermissionDeniedError):
            await client.start("p", idempotency_key="k")


async def test_clocks_may_differ_by_the_skew(engine: Engine) -> None:
    now = time.time()
    late, early = engine.issuer.token(exp=now - 20), engine.issuer.token(nbf=now + 20, iat=now + 20)

    assert (await engine.who(late)).principal == (await engine.who(early)).principal


Made = Callable[[TestIssuer], str]
_BAD: dict[str, tuple[Made, str]] = {
    "expired": (lambda it: it.token(exp=time.time() - 60), "which has expired"),
    "without exp": (lambda it: it.token(exp=None), "without exp"),
    "exp is a string": (lambda it: it.token(exp="soon"), "exp is not a number"),
    "exp is huge": (lambda it: it.token(exp=10**400), "exp is not a number"),
    "exp is true": (lambda it: it.token(exp=True), "exp is not a number"),
    "not yet valid": (lambda it: it.token(nbf=time.time() + 60), "not valid yet"),
    "of the future": (lambda it: it.token(iat=time.time() + 60), "issued in the future"),
    "wrong audience": (lambda it: it.token(aud=["shop", 3]), "another audience"),
    "without audience": (lambda it: it.token(aud=None), "another audience"),
    "wrong issuer": (lambda it: it.token(iss=f"{it.url}/"), "unknown issuer"),
    "without issuer": (lambda it: it.token(iss=None), "unknown issuer"),
    "no principal": (lambda it: it.token(sub=""), "with an invalid sub"),
    "principal with a star": (lambda it: it.token(sub="*"), "with an invalid sub"),
    "principal too long": (lambda it: it.token(sub="a" * 300), "with an invalid sub"),
    "too many groups": (lambda it: it.token(groups=["g"] * 513), "513 groups"),
    "alg=none": (lambda it: it.forged({"alg": "none", "kid": "rsa"}), "signed by 'none'"),
    "HS256 with the public key": (
        lambda it: it.forged(
            {"alg": "HS256", "kid": "rsa"}, it.keys["rsa"].as_pem(private=False)
        ),
        "signed by 'HS256'",
    ),
    "algorithm of no issuer": (lambda it: it.token("rsa", "RS384"), "signed by 'RS384'"),
    "ES256 with an RSA key": (
        lambda it: it.token("ec", "ES256", header={"kid": "rsa"}), "does not fit ES256"
    ),
    "RS256 with an EC key": (
        lambda it: it.token("rsa", "RS256", header={"kid": "ec"}), "does not fit RS256"
    ),
    "another algorithm than that of the key": (
        lambda it: it.token("ps", "RS256"), "does not fit RS256"
    ),
    "bad signature": (lambda it: f"{it.token()[:-8]}AAAAAAAA", "bad signature"),
    "no signature": (lambda it: f"{it.token().rpartition('.')[0]}.", "bad signature"),
    "unknown kid": (lambda it: it.token("gone"), "unknown key"),
    "without kid": (lambda it: it.token(header={"kid": ""}), "without a kid"),
    "crit": (
        lambda it: it.forged({"alg": "RS256", "kid": "rsa", "crit": ["exp"], "exp": 1}),
        "header crit",
    ),
    "b64": (lambda it: it.forged({"alg": "RS256", "kid": "rsa", "b64": True}), "header b64"),
    "zip": (lambda it: it.forged({"alg": "RS256", "kid": "rsa", "zip": "DEF"}), "header zip"),
    "a logout token": (lambda it: it.token(header={"typ": "logout+jwt"}), "of the type"),
    "huge": (lambda it: it.token(padding="a" * 16_000), "an identity token of 2"),
    "not JSON": (lambda _: "e30.bm90IGpzb24.AA", "neither an API token nor"),
    "claims are a list": (lambda _: "eyJhbGciOiJSUzI1NiJ9.W10.AA", "neither an API token nor"),
    "header is a list": (lambda _: "W10.e30.AA", "neither an API token nor"),
    "encrypted": (lambda _: "a.b.c.d.e", "neither an API token nor"),
    "not ASCII": (lambda it: f"{it.token()}~", "bad signature"),
    "an unknown API token": (lambda _: f"prg_{'0' * 12}_{'0' * 64}", "unknown, revoked"),
}  # fmt: skip


@pytest.mark.parametrize("name", _BAD)
async def test_a_bad_token_is_refused_and_only_the_log_says_why(
    engine: Engine, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    make, reason = _BAD[name]
    token = make(engine.issuer)
    async with grpc.aio.insecure_channel(engine.replica.address) as channel:
        call: Any = AccessServiceStub(channel).WhoAmI(
            pb.WhoAmIRequest(), metadata=(("authorization", f"Bearer {token}"),), timeout=10
        )
        code, words = await call.code(), await call.details()

    # A busy machine may log something else.
    [record] = [it for it in caplog.records if "why" in vars(it) and "peer" in vars(it)]
    assert (code, words) == (grpc.StatusCode.UNAUTHENTICATED, _NOT_PLAIN)
    assert reason in vars(record)["why"]
    assert token not in str(vars(record))


async def test_an_idle_session_ends_with_its_token(engine: Engine) -> None:
    token = engine.issuer.token(exp=time.time() - 30 + 2)

    assert await _end_of_session(engine, token) is grpc.StatusCode.UNAUTHENTICATED


async def test_an_idle_session_ends_when_its_token_is_revoked(engine: Engine) -> None:
    created, text = await engine.admin.access.create_token("leaver")
    ending = asyncio.create_task(_end_of_session(engine, text))
    await engine.admin.access.revoke_token(created.token_id)

    assert await ending is grpc.StatusCode.UNAUTHENTICATED


async def test_an_idle_watch_ends_when_its_token_is_revoked(engine: Engine) -> None:
    created, text = await engine.admin.access.create_token("watcher")
    await engine.admin.access.add_binding("token:watcher", Role.READER, SPACE)
    graph = Graph()
    graph.node("a")
    async with (
        engine.client(engine.issuer.token()) as caller,
        engine.client(text) as client,
    ):
        await caller.jobs.submit("watched", graph, idempotency_key="k")
        watch = client.jobs.watch("watched")
        await anext(watch)
        await engine.admin.access.revoke_token(created.token_id)
        with pytest.raises(UnauthenticatedError):
            await anext(watch)


async def _end_of_session(engine: Engine, token: str) -> grpc.StatusCode:
    """Open a session that stays idle, and return how it ends."""
    async with grpc.aio.insecure_channel(engine.replica.address) as channel:
        session: Any = channel.stream_stream("/progressor.v1.ProcessService/Session")
        call = session(metadata=(("authorization", f"Bearer {token}"),), timeout=20)
        code: grpc.StatusCode = await call.code()
        return code


async def test_a_client_repeats_with_another_token_what_the_end_of_the_first_one_ended(
    engine: Engine,
) -> None:
    made = [await engine.admin.access.create_token("renewed") for _ in range(2)]
    await engine.admin.access.add_binding("token:renewed", Role.CALLER, SPACE)
    tokens = [text for _, text in made]
    async with engine.client(lambda: tokens[0], session=True) as client:
        await client.start("slow", accept_only=True, idempotency_key="k")
        waiting: asyncio.Task[object] = asyncio.create_task(
            client.call("slow", idempotency_key="c")
        )
        await engine.replica.points.wait("admitted", 2, key=process_key(SPACE, "slow"))
        tokens.pop(0)
        await engine.admin.access.revoke_token(made[0][0].token_id)
        await engine.replica.points.wait("admitted", 3, key=process_key(SPACE, "slow"))
        await engine.admin.terminate("slow", namespace=SPACE, reason="enough")

        with pytest.raises(ProcessFinishedError):
            await waiting


# --- The command line


class Devices:
    """The endpoints of a login by a device: each poll is answered by the next of some answers."""

    def __init__(self, issuer: TestIssuer, *answers: tuple[int, dict[str, object]]) -> None:
        self.answers = list(answers)
        self.forms: list[Mapping[str, str]] = []
        issuer.more = {"device_authorization_endpoint": "/device", "token_endpoint": "/token"}
        issuer.posts = {"/device": self._begin, "/token": self._poll}

    def _begin(self, form: Mapping[str, str]) -> tuple[int, dict[str, object]]:
        self.forms.append(form)
        return 200, {
            "device_code": "d", "user_code": "AB-CD", "verification_uri": "https://id/enter",
            "interval": 0.1, "expires_in": 60,
        }  # fmt: skip

    def _poll(self, form: Mapping[str, str]) -> tuple[int, dict[str, object]]:
        self.forms.append(form)
        return self.answers.pop(0)


async def _run(*arguments: str) -> int:
    return await asyncio.to_thread(main, arguments)


@pytest.fixture
def contexts_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "home" / "contexts.toml"
    monkeypatch.setenv("PROGRESSOR_CONTEXTS", str(file))
    return file


async def test_a_login_lasts_by_its_refresh_token(
    engine: Engine, contexts_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    issuer = engine.issuer
    devices = Devices(
        issuer,
        (400, {"error": "authorization_pending"}),
        (200, {"access_token": issuer.token(), "refresh_token": "r", "expires_in": 10}),
        (200, {"access_token": issuer.token(sub="bob"), "expires_in": 600}),
    )
    login = ("login", "--issuer", issuer.url, "--client-id", "cli")

    codes = [
        await _run("context", "add", "here", "--address", engine.replica.address),
        await _run(*login),
        await _run("access", "whoami"),
        await _run("access", "whoami"),
        await _run("logout"),
        await _run("access", "whoami"),
    ]

    said = capsys.readouterr()
    assert codes == [0, 0, 0, 0, 0, 1]
    assert "Open https://id/enter and enter the code AB-CD" in said.err
    assert said.out.count("user:corp/bob") == 2
    assert [it.get("refresh_token") for it in devices.forms] == [None, None, None, "r"]
    assert all(it["client_id"] == "cli" for it in devices.forms)
    assert [it.name for it in contexts_file.parent.glob("*.json")] == []


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"error": "access_denied"}, "the login was denied"),
        ({"error": "expired_token"}, "the code has expired"),
        ({"error": "invalid_client", "error_description": "no"}, "invalid_client: no"),
        ({"error": ["no", {}]}, "refused the login: ['no', {}]"),
    ],
)
async def test_a_login_that_fails_says_why_and_keeps_nothing(
    engine: Engine,
    contexts_file: Path,
    capsys: pytest.CaptureFixture[str],
    answer: dict[str, object],
    said: str,
) -> None:
    Devices(engine.issuer, (400, answer))
    await _run("context", "add", "here", "--address", engine.replica.address)
    code = await _run("login", "--issuer", engine.issuer.url, "--client-id", "cli")

    assert (code, said in capsys.readouterr().err) == (2, True)
    assert list(contexts_file.parent.glob("*.json")) == []


@pytest.mark.usefixtures("contexts_file")
@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 10**400, -1, True, "soon"])
async def test_odd_lifetimes_do_not_matter(engine: Engine, seconds: object) -> None:
    token = {"access_token": engine.issuer.token(), "expires_in": seconds}
    Devices(engine.issuer, (200, token))
    await _run("context", "add", "here", "--address", engine.replica.address)

    assert await _run("login", "--issuer", engine.issuer.url, "--client-id", "cli") == 0
    assert await _run("access", "whoami") == 0


@pytest.mark.usefixtures("contexts_file")
@pytest.mark.parametrize("token", ["two lines\n", "\ud800", "", 7, "a" * 20_000])
async def test_a_token_that_cannot_be_sent_is_not_kept(
    engine: Engine, capsys: pytest.CaptureFixture[str], token: object
) -> None:
    Devices(engine.issuer, (200, {"access_token": token}))
    await _run("context", "add", "here", "--address", engine.replica.address)

    assert await _run("login", "--issuer", engine.issuer.url, "--client-id", "cli") == 2
    assert "has sent no access token" in capsys.readouterr().err


async def test_a_login_changes_nothing_else_and_is_for_one_engine(
    engine: Engine, contexts_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answers: list[tuple[int, dict[str, object]]] = [(200, {"access_token": "t"})] * 2
    devices = Devices(engine.issuer, *answers)
    poll, meanwhile = engine.issuer.posts["/token"], ["other", "--address", "other:1"]

    def poll_after_a_change(form: Mapping[str, str]) -> tuple[int, Mapping[str, object]]:
        assert main(["context", "add", *meanwhile]) == 0
        return poll(form)

    engine.issuer.posts["/token"] = poll_after_a_change
    await _run("context", "add", "here", "--address", engine.replica.address)
    login = ("login", "--issuer", engine.issuer.url, "--client-id", "cli")
    codes = [await _run(*login)]
    meanwhile[:] = ["here", "--replace", "--address", "other:1"]
    codes.append(await _run(*login))

    assert (codes, devices.answers) == ([0, 2], [])
    assert "'here' was changed during the login; log in again" in capsys.readouterr().err
    assert set(contexts.read().by_name) == {"here", "other"}
    assert list(contexts_file.parent.glob("*.json")) == []


async def test_tokens_that_others_may_read_are_not_used(
    engine: Engine, contexts_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Devices(engine.issuer, (200, {"access_token": engine.issuer.token(), "expires_in": 600}))
    await _run("context", "add", "here", "--address", engine.replica.address)
    await _run("login", "--issuer", engine.issuer.url, "--client-id", "cli")
    tokens = contexts_file.parent / "here.tokens.json"
    mode = stat.S_IMODE(tokens.stat().st_mode)
    tokens.chmod(0o640)

    assert (mode, await _run("access", "whoami")) == (0o600, 2)
    assert "must be readable to its user alone (0600), is 0640" in capsys.readouterr().err
