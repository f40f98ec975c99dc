"""The keys of an issuer: fetched at a bounded rate, and kept while it is away."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from progressor.access_errors import UnauthenticatedError
from progressor.api.guard import identity_tokens
from progressor.api.guard.issuer_keys import IssuerKeys, Pace
from progressor.clock import SystemClock
from progressor.settings.issuers import Issuer
from tests.support.api.issuer import AUDIENCE, TestIssuer, running_issuer
from tests.support.certificates import Pki
from tests.support.engine.points import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.filterwarnings("ignore::joserfc.errors.SecurityWarning")

SOON = Pace(age=600, retry=600, gap=0, hold=PATIENCE_SECONDS)


class Fetching:
    """Keys that are being fetched, and how each fetch has ended."""

    def __init__(
        self, issuer: TestIssuer, pace: Pace, jwks_url: str = "", ca: Path | None = None
    ) -> None:
        self.results: list[str] = []
        settings = Issuer(
            issuer=issuer.url, audiences=("a",), algorithms=("RS256",), jwks_url=jwks_url, ca=ca
        )
        self.keys = IssuerKeys("corp", settings, counted=self.results.append, pace=pace)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[IssuerKeys]:
        task = asyncio.create_task(self.keys.run())
        try:
            yield self.keys
        finally:
            task.cancel()

    async def ended(self, count: int) -> None:
        async def has_ended() -> bool:
            return len(self.results) >= count

        await eventually(has_ended)


async def test_a_new_key_is_found_when_it_is_asked_for() -> None:
    with running_issuer() as issuer:
        first = issuer.keys.pop("ec")
        async with Fetching(issuer, SOON).running() as keys:
            await keys.ask()
            before = keys.get("ec"), keys.get("rsa")
            issuer.keys = {"ec": first}
            await keys.ask()

            assert before[0] is None
            assert before[1] is not None
            assert (keys.get("ec") is None, keys.get("rsa")) == (False, None)


async def test_unknown_keys_are_not_fetched_more_often_than_the_gap() -> None:
    with running_issuer() as issuer:
        fetching = Fetching(issuer, Pace(gap=3600, hold=PATIENCE_SECONDS))
        async with fetching.running() as keys:
            await asyncio.gather(*(keys.ask() for _ in range(50)))
            await asyncio.gather(*(keys.ask() for _ in range(50)))

        assert issuer.asked == ["/.well-known/openid-configuration", "/keys"]


async def test_keys_are_fetched_again_at_their_age() -> None:
    with running_issuer() as issuer:
        fetching = Fetching(issuer, Pace(age=0.01, gap=0), jwks_url=f"{issuer.url}/keys")
        async with fetching.running() as keys:
            await fetching.ended(1)
            key = keys.get("rsa")
            await fetching.ended(3)

            assert keys.get("rsa") is key


@pytest.mark.parametrize(
    "garbage",
    [
        b"not JSON",
        b"[]",
        b"[" * 100_000,
        b'{"keys": []}',
        b'{"keys": 7}',
        b'{"keys": [{"kid": "rsa", "kty": "oct", "k": "AAAA"}]}',
        b'{"keys": [{"kid": "rsa", "kty": "RSA", "n": "AQ", "e": "AQAB"}]}',
        b'{"keys": [{"kid": "x", "kty": "RSA"}, 7, {"kty": "EC"}, {"kid": 7}]}',
        b" " * 600_000,
        # Whose primes it would take a minute to find.
        b'{"keys": [{"kid": "rsa", "kty": "RSA", "n": "%s", "e": "AQAB", "d": "%s"}]}'
        % (b"_" * 1366, b"_" * 1365 + b"9"),
        b'{"keys": [{"kid": "rsa", "kty": "RSA", "n": "%s", "e": "AQAB"}]}' % (b"_" * 100_000),
    ],
)
async def test_garbage_leaves_the_last_keys_and_is_logged_once(
    caplog: pytest.LogCaptureFixture, garbage: bytes
) -> None:
    caplog.set_level(logging.INFO)
    with running_issuer() as issuer:
        fetching = Fetching(issuer, SOON, jwks_url=f"{issuer.url}/keys")
        async with fetching.running() as keys:
            await keys.ask()
            key, issuer.garbage = keys.get("rsa"), garbage
            for _ in range(3):
                await keys.ask()
            kept, issuer.garbage = keys.get("rsa"), None
            await keys.ask()

    assert kept is key is not None
    assert fetching.results == ["ok", "failed", "failed", "failed", "ok"]
    assert [it.getMessage() for it in caplog.records] == [
        "keys not fetched; keeping the last ones",
        "keys fetched again",
    ]


async def test_the_discovery_document_must_be_that_of_the_issuer() -> None:
    with running_issuer() as issuer:
        fetching = Fetching(issuer, SOON)
        issuer.more = {"issuer": "/other"}
        async with fetching.running() as keys:
            await keys.ask()

            assert (keys.get("rsa"), fetching.results) == (None, ["failed"])


async def test_an_issuer_elsewhere_sends_nobody_to_services_of_this_machine(
    tmp_path: Path,
) -> None:
    pki = Pki(tmp_path)
    with running_issuer() as inside, running_issuer(pki.issue("issuer")) as issuer:
        fetching = Fetching(issuer, SOON, ca=pki.ca)
        async with fetching.running() as keys:
            await keys.ask()
            issuer.discovery = {"jwks_uri": f"{inside.url}/keys"}
            await keys.ask()

    assert fetching.results == ["ok", "failed"]
    assert inside.asked == []


async def test_a_slow_issuer_holds_a_request_only_for_a_moment() -> None:
    with running_issuer() as issuer:
        fetching = Fetching(issuer, Pace(hold=0.01))
        issuer.released.clear()
        async with fetching.running() as keys:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await keys.ask()
                await keys.ask()
            assert fetching.results == []
            issuer.released.set()
            await fetching.ended(1)

            assert keys.get("rsa") is not None


async def test_an_email_names_a_principal_only_if_it_is_verified() -> None:
    with running_issuer() as issuer:
        async with Fetching(issuer, SOON).running() as keys:
            await keys.ask()
            settings = Issuer(
                issuer=issuer.url,
                audiences=(AUDIENCE,),
                algorithms=("RS256",),
                principal_claim="email",
            )
            known = identity_tokens.KnownIssuer(name="corp", settings=settings, keys=keys)
            tokens = identity_tokens.IdentityTokens([known], SystemClock())

            for verified in (True, "true"):
                token = issuer.token(email="ada@corp.example", email_verified=verified)
                assert tokens.principal_of(token).name == "user:corp/ada@corp.example"
            for other in (False, None, "false", "yes", [True]):
                token = issuer.token(email="ada@corp.example", email_verified=other)
                with pytest.raises(UnauthenticatedError) as refused:
                    tokens.principal_of(token)
                assert "without email_verified" in refused.value.fault


async def test_few_tokens_with_many_groups_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity_tokens, "_WEIGHT_MAX", 1_200)
    with running_issuer() as issuer:
        fetching = Fetching(issuer, SOON)
        async with fetching.running() as keys:
            await keys.ask()
            settings = Issuer(
                issuer=issuer.url, audiences=(AUDIENCE,), algorithms=("RS256",), groups_claim="g"
            )
            known = identity_tokens.KnownIssuer(name="corp", settings=settings, keys=keys)
            checked = identity_tokens.IdentityTokens([known], SystemClock())
            heavy = [issuer.token(g=[str(it) for it in range(500)], jti=it) for it in range(5)]
            for token in (*heavy, *heavy, issuer.token()):
                assert checked.principal_of(token).name == "user:corp/ada"

            assert [len(it.principal.groups) for it in checked._remembered.values()] == [
                500,
                500,
                0,
            ]
