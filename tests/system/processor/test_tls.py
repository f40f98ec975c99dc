"""The engine's identity towards processors: certificates, tokens, and what is said if they fail."""

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from progressor.domain.processes.intent import Failed, Outcome, Succeeded
from progressor.engine.certificates import processor_credentials
from progressor.example.certificates import replace
from progressor.processor.credentials import Credentials
from progressor.sdk import BYTES, Processor, ServerTls, Step, Trust
from progressor.settings.credentials import ProcessorCredentials
from progressor.telemetry.metrics.registry import Metrics
from progressor.wire.tls import Reloaded, TlsFiles
from tests.support.certificates import Pki
from tests.support.processor.asking import Asking, running_channels

ENGINE = "spiffe://example.org/engine"
PATIENCE_SECONDS = 60

orders = Processor("orders", codec=BYTES)


@orders.init
@orders.call
async def answer(step: Step[bytes]) -> bytes:
    args: bytes = step.args
    return args


@dataclasses.dataclass(slots=True)
class Ground:
    """Files of both sides."""

    pki: Pki
    own: TlsFiles
    """Of the engine."""
    server: TlsFiles
    token: Path

    @property
    def tls(self) -> ServerTls:
        assert self.server.certificate is not None
        assert self.server.key is not None
        return ServerTls(
            certificate=self.server.certificate, key=self.server.key, client_ca=self.pki.ca
        )

    @property
    def credentials(self) -> ProcessorCredentials:
        return ProcessorCredentials(
            ca=self.pki.ca,
            certificate=self.own.certificate,
            key=self.own.key,
            token_file=self.token,
        )


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    pki, token = Pki(tmp_path), tmp_path / "token"
    token.write_text("secret-1\n")
    own = pki.issue("engine", hosts=(), uris=(ENGINE,))
    return Ground(pki=pki, own=own, server=pki.issue("processor"), token=token)


@dataclasses.dataclass(slots=True)
class Reached:
    asking: Asking
    credentials: Reloaded[Credentials]

    async def ask(self) -> Outcome:
        return await self.asking.ask(seconds=PATIENCE_SECONDS)

    async def refusal(self) -> str:
        """Return why a step was not taken, which is as for a processor that is not reached."""
        outcome = await self.ask()
        assert isinstance(outcome, Failed)
        assert outcome.unreachable
        return outcome.message


@contextlib.asynccontextmanager
async def reached(
    table: ProcessorCredentials | None, *, streaming: bool = True, **served: Any
) -> AsyncIterator[Reached]:
    """Run a processor, and ask it by some credentials; None: by none."""
    tables = {"known": table or ProcessorCredentials()}
    credentials = processor_credentials(tables, Metrics())
    async with (
        orders.running("127.0.0.1:0", streaming=streaming, **served) as address,
        running_channels(credentials) as channels,
    ):
        name = "" if table is None else "known"
        yield Reached(Asking(channels, address, name), credentials["known"])


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_processor_takes_steps_of_the_engine_that_it_trusts(
    ground: Ground, streaming: bool
) -> None:
    trust = Trust(tokens=["other", "secret-1"], identities=[ENGINE])
    async with reached(
        ground.credentials, streaming=streaming, tls=ground.tls, trust=trust
    ) as there:
        assert isinstance(await there.ask(), Succeeded)


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize(
    ("trust", "said"),
    [
        (Trust(tokens=["secret-2"]), "does not know the token"),
        (Trust(identities=["spiffe://example.org/other"]), "has no name that the processor trusts"),
    ],
)
async def test_other_engines_are_refused_and_told_why(
    ground: Ground, caplog: pytest.LogCaptureFixture, trust: Trust, said: str, streaming: bool
) -> None:
    table = ground.credentials
    async with reached(table, streaming=streaming, tls=ground.tls, trust=trust) as there:
        refusals = [await there.refusal() for _ in range(3)]

    assert all(said in it and "does not accept this engine" in it for it in refusals)
    assert len([it for it in caplog.messages if "refusing an engine" in it]) == 1


async def test_an_engine_without_a_token_is_refused(ground: Ground) -> None:
    async with reached(None, trust=Trust(token_file=ground.token)) as there:
        assert "the engine sent none" in await there.refusal()


@pytest.mark.parametrize("streaming", [True, False])
async def test_certificates_and_tokens_are_replaced_without_a_failed_step(
    ground: Ground, streaming: bool
) -> None:
    tokens = [f"secret-{number}" for number in range(5)]
    trust = Trust(tokens=tokens, identities=[ENGINE])
    done, outcomes, used = asyncio.Event(), list[Outcome](), set[object]()

    async def load(there: Reached) -> None:
        while not done.is_set():
            outcomes.append(await there.ask())

    async with (
        asyncio.timeout(PATIENCE_SECONDS),
        reached(ground.credentials, streaming=streaming, tls=ground.tls, trust=trust) as there,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(3):
            group.create_task(load(there))
        for token in tokens:
            ground.pki.issue("processor")
            ground.pki.issue("engine", hosts=(), uris=(ENGINE,))
            replace(ground.token, token.encode())
            there.credentials.look()
            outcomes.append(await there.ask())
            used.update(there.asking.channels._connections.values())
        done.set()
        # Each is closed after its last step.
        kept = len(there.asking.channels._connections)

    assert {type(it) for it in outcomes} == {Succeeded}
    assert len(used) == len(tokens)
    assert kept <= 2


async def test_unknown_credentials_reach_no_processor_and_say_so(
    ground: Ground, caplog: pytest.LogCaptureFixture
) -> None:
    async with reached(ground.credentials, tls=ground.tls) as there:
        known = there.asking.namespace
        there.asking.namespace = dataclasses.replace(known, processor_credentials="unknown")
        refusals = {await there.refusal() for _ in range(3)}
        connected = there.asking.channels.is_connected(known.name)
        warnings = [it for it in caplog.records if it.levelno >= logging.WARNING]
        there.asking.namespace = known
        outcome = await there.ask()

    assert len(refusals) == 1
    assert "this replica has no processor_credentials.unknown" in refusals.pop()
    assert connected is False
    assert [it.getMessage() for it in warnings] == ["processor credentials cannot be used"]
    assert isinstance(outcome, Succeeded)


async def test_a_token_is_sent_in_the_clear_to_this_machine_alone(ground: Ground) -> None:
    table = ProcessorCredentials(tls=False, token_file=ground.token)
    async with reached(table, trust=Trust(token_file=ground.token)) as there:
        outcome = await there.ask()
        there.asking.aim_at("10.255.255.1:1")
        refusal = await there.refusal()

    assert isinstance(outcome, Succeeded)
    assert refusal.endswith("the token is not sent to 10.255.255.1:1 without TLS")


async def test_a_connection_that_tls_prevents_says_what_it_needs(
    ground: Ground, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other, named = Pki(tmp_path / "other"), ground.pki.issue("named", hosts=("elsewhere",))
    assert named.certificate is not None
    assert named.key is not None
    only_ca = ProcessorCredentials(ca=ground.pki.ca)
    elsewhere = ServerTls(certificate=named.certificate, key=named.key)
    cases: list[tuple[ProcessorCredentials | None, ServerTls | None, str]] = [
        (None, ground.tls, "the other side may expect TLS"),
        (only_ca, None, "the other side does not use TLS"),
        (only_ca, ground.tls, "the other side may expect a certificate"),
        (ProcessorCredentials(ca=other.ca), ground.tls, "is not of an authority that is trusted"),
        (only_ca, elsewhere, "for other names than that of the address"),
    ]
    for table, tls, said in cases:
        async with reached(table, tls=tls) as there:
            assert said in await there.refusal()

    by_name = dataclasses.replace(only_ca, server_name="elsewhere")
    async with reached(by_name, tls=elsewhere) as there:
        assert isinstance(await there.ask(), Succeeded)


def test_identities_without_certificates_are_refused(ground: Ground) -> None:
    without_clients = dataclasses.replace(ground.tls, client_ca=None)
    for tls in (None, without_clients):
        with pytest.raises(ValueError, match=r"Trust.identities needs tls=ServerTls"):
            orders.serve("127.0.0.1:0", tls=tls, trust=Trust(identities=[ENGINE]))
    with pytest.raises(ValueError, match="must be given"):
        Trust()
    with pytest.raises(TypeError, match="sequences of strings"):
        Trust(tokens="secret")
