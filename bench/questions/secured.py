"""What do TLS and tokens, at the client and at the processor, cost a start and a step?"""

import contextlib
import dataclasses
import datetime as dt
import tempfile
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

from bench.env import SESSION, Env
from bench.measurement import Measurement, Pace, Turn, ratio, summed_up
from bench.peers import started
from bench.questions.steps import run_for_a_turn
from progressor.example.certificates import Authority

_PROCESS_COUNT = 50
_LIFETIME = dt.timedelta(days=1)
_CREDENTIALS = "bench"

NAMES = ("start_plain", "start_secured", "steps_plain", "steps_secured")


@dataclasses.dataclass(frozen=True, slots=True)
class _Way:
    """The parts that requests and steps go through, and what an order of it says."""

    env: Env
    order: Mapping[str, object]


async def ask(env: Env, pace: Pace) -> list[Measurement]:
    """Measure alternately without and with security; `ratio_to_plain` is that of the rates."""
    turns: dict[str, list[Turn]] = {name: [] for name in NAMES}
    async with _secured(env) as secured:
        ways = {"plain": _Way(env, {"targets": [env.engines[0].address]}), "secured": secured}
        for way in ways.values():
            await _start(way, pace, seconds=pace.warm_up)
        for number in range(pace.turns):
            # In turn, so that a machine that slows down does not favour one of them.
            for name in sorted(ways, reverse=number % 2 == 1):
                turns[f"start_{name}"].append(await _start(ways[name], pace))
                turns[f"steps_{name}"].append(await _step(f"steps_{name}", ways[name], pace))
    return [
        summed_up(name, own, ratio_to_plain=round(ratio(own, turns[_plain(name)]), 3))
        for name, own in turns.items()
    ]


def _plain(name: str) -> str:
    return f"{name.partition('_')[0]}_plain"


async def _start(way: _Way, pace: Pace, *, seconds: float = 0.0) -> Turn:
    order = {"what": "start", "seconds": seconds or pace.seconds, **way.order}
    return await way.env.turn("", order, SESSION)


async def _step(name: str, way: _Way, pace: Pace) -> Turn:
    order = {"count": pace.count(_PROCESS_COUNT), **way.order}
    return await run_for_a_turn(way.env, order, name, pace)


@contextlib.asynccontextmanager
async def _secured(env: Env) -> AsyncIterator[_Way]:
    """Run an engine and a processor that require a token and speak TLS only."""
    with tempfile.TemporaryDirectory(prefix="progressor-bench-") as folder:
        files = _Files(Path(folder))
        files.token.write_text(str((await env.driver.ask(what="admin"))["token"]))
        settings = (
            f"file={files.config}", f"server.tls_certificate={files.certificate}",
            f"server.tls_key={files.key}", "access.enabled=true",
        )  # fmt: skip
        security = (str(files.certificate), str(files.key), str(files.token))
        async with (
            started("processor", "stream", *security) as processor,
            env.engine_beside(*settings) as engine,
        ):
            order = {"tls_ca": str(files.ca), "token_file": str(files.token)}
            namespace = f"secured-{env.prefix()}"
            await env.clients[0].ask(
                what="namespace", target=engine.address, name=namespace, workers=1000,
                processor=processor.address, credentials=_CREDENTIALS, **order,
            )  # fmt: skip
            own = dataclasses.replace(
                env,
                processors={**env.processors, True: processor},
                namespaces={**env.namespaces, True: namespace},
            )
            yield _Way(own, {"targets": [engine.address], **order})


class _Files:
    """A certificate for this machine, and the settings of an engine that uses it."""

    def __init__(self, folder: Path) -> None:
        self.ca, self.config = folder / "ca.pem", folder / "progressor.toml"
        self.certificate, self.key = folder / "server.pem", folder / "server.key"
        self.token = folder / "token"
        authority = Authority("progressor bench", now=dt.datetime.now(dt.UTC), lifetime=_LIFETIME)
        self.ca.write_bytes(authority.certificate)
        authority.issue("bench", "127.0.0.1").write(self.certificate, self.key)
        self.config.write_text(
            f'[processor_credentials.{_CREDENTIALS}]\nca = "{self.ca}"\n'
            f'token_file = "{self.token}"\n'
        )
