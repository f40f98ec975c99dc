"""Runs an example's processor and its scenario beside an engine."""

import asyncio
import contextlib
import dataclasses
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from progressor.cli.input.signals import forever
from progressor.cli.processes.timeline import timeline
from progressor.engine.engine import Engine
from progressor.errors import ProgressorError
from progressor.example import mapreduce, nightly, nine, order, rollout
from progressor.example.mapreduce_scenario import MapReduceScenario
from progressor.example.nightly_scenario import NightlyScenario
from progressor.example.nine_scenario import NineScenario
from progressor.example.rollout_scenario import RolloutScenario
from progressor.example.scenario import Scenario, ScenarioError, register
from progressor.sdk import BYTES, Client, NamespaceConfig, Processor
from progressor.sdk.processor.server import BIND_DEFAULT

_TIMEOUT_SECONDS = 90.0
_ANY_PORT = "127.0.0.1:0"


class Play(Protocol):
    """One run of an example."""

    @property
    def processor(self) -> Processor[Any]: ...

    async def play(self, client: Client) -> tuple[str, ...]:
        """Run the scenario, and return ids of processes that remain."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """An example: its namespace by the processor's address, and what begins a run.

    ``commands`` are suggested afterwards; ``{id}`` stands for a process that remains.
    """

    namespace: Callable[[str], NamespaceConfig]
    begin: Callable[..., Play]
    commands: tuple[str, ...]


EXAMPLES: Mapping[str, Example] = MappingProxyType(
    {
        "order": Example(
            namespace=order.namespace,
            begin=Scenario,
            commands=(
                "trace -n orders {id}",
                """start -n orders mine --args '{"item":"tea","price":7}'""",
                """call -n orders mine --args '{"type":"pay","amount":7}'""",
            ),
        ),
        "rollout": Example(
            namespace=rollout.namespace,
            begin=RolloutScenario,
            commands=(
                f"gate list -n {rollout.NAMESPACE}",
                f"trace -n {rollout.NAMESPACE} {{id}}",
            ),
        ),
        "job": Example(
            namespace=nine.namespace,
            begin=NineScenario,
            commands=(
                f"job list -n {nine.NAMESPACE}",
                f"job get -n {nine.NAMESPACE} {{id}}",
            ),
        ),
        "mapreduce": Example(
            namespace=mapreduce.namespace,
            begin=MapReduceScenario,
            commands=(
                f"job get -n {mapreduce.NAMESPACE} {{id}}",
                f"trace -n {mapreduce.NAMESPACE} {{id}}",
            ),
        ),
        "nightly": Example(
            namespace=nightly.namespace,
            begin=NightlyScenario,
            commands=(
                f"schedule list -n {nightly.NAMESPACE}",
                f"trace -n {nightly.NAMESPACE} {{id}}",
            ),
        ),
    }
)


async def show(engine: Engine, *, console: Console, once: bool, example: Example) -> None:
    """Run an example's processor and scenario, and print traces; then serve, unless `once`.

    Raises:
        ScenarioError: The scenario failed, or PostgreSQL stays unavailable with `once`.
    """
    console.print(Text(f"engine at {', '.join(engine.addresses)} on {engine.database}"))
    if engine.metrics_url:
        console.print(Text(f"metrics at {engine.metrics_url}"))
    await _until_serving(engine, console=console, once=once)
    address = reachable(engine.addresses[0])
    run = example.begin(console=console, run=secrets.token_hex(3))
    async with _serving(run.processor) as target:
        config = example.namespace(target)
        async with Client(address, namespace=config.name, timeout=_TIMEOUT_SECONDS) as client:
            console.print(Text(f"processor at {target}"))
            console.print()
            try:
                await register(client, config)
            except ProgressorError as error:
                why = f"{error} ({error.reason})"
                raise ScenarioError("register its namespace", why) from error
            left = await run.play(client)
            await _show_traces(address, config.name, left[:2], console=console)
            if not once:
                _invite(engine, address, example, left[0], console=console)
                await forever()


def reachable(address: str) -> str:
    """Return the address at which this machine reaches a listener on `address`."""
    host, colon, port = address.rpartition(":")
    loopback = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104  # read, not bound
    return f"{loopback.get(host, host)}{colon}{port}"


async def _until_serving(engine: Engine, *, console: Console, once: bool) -> None:
    if not engine.serving.is_set():
        console.print(Text("waiting for PostgreSQL …", style="dim"))
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS if once else None):
            await engine.serving.wait()
    except TimeoutError as error:
        why = f"{engine.database} has been unavailable for {_TIMEOUT_SECONDS:.0f} s"
        raise ScenarioError("reach PostgreSQL", why) from error


@contextlib.asynccontextmanager
async def _serving(processor: Processor[Any]) -> AsyncIterator[str]:
    async with contextlib.AsyncExitStack() as stack:
        try:
            target = await stack.enter_async_context(processor.running(BIND_DEFAULT))
        except RuntimeError:
            # The port is in use. It is preferred because processes of an earlier run find their
            # processor there even before the namespace is updated.
            target = await stack.enter_async_context(processor.running(_ANY_PORT))
        yield target


async def _show_traces(
    address: str, namespace: str, process_ids: tuple[str, ...], *, console: Console
) -> None:
    async with Client(address, namespace=namespace, codec=BYTES) as client:
        for process_id in process_ids:
            trace = await client.trace(process_id)
            console.print()
            console.print(Rule(Text(f"trace of {process_id}"), style="dim", align="left"))
            console.print(timeline(trace.tasks))


def _invite(
    engine: Engine, address: str, example: Example, process_id: str, *, console: Console
) -> None:
    where = "" if address == "127.0.0.1:7420" else f" --address {address}"
    console.print()
    console.print(Text(f"serving at {', '.join(engine.addresses)} until Ctrl-C; try", "bold"))
    for command in example.commands:
        words = command.replace("{id}", process_id)
        # Not wrapped, so that the command can be copied.
        console.print(Text(f"  progressor {words}{where}"), soft_wrap=True)
