"""What dev shows: the example's processor and its scenario, beside a running engine."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator

from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from progressor.cli.hosting import Engine, forever
from progressor.cli.timeline import timeline
from progressor.errors import ProgressorError
from progressor.example.order import orders
from progressor.example.scenario import Played, Scenario, ScenarioError, register
from progressor.sdk.client import Client
from progressor.sdk.codecs import BYTES
from progressor.sdk.server import BIND_DEFAULT

_PATIENCE_SECONDS = 90.0
_ANY_PORT = "127.0.0.1:0"


async def show(engine: Engine, *, console: Console, once: bool) -> None:
    """Serve the example, play it, show its trace; then, unless `once`, keep serving.

    Raises:
        ScenarioError: It went another way than it must, or `once` and PostgreSQL stays away.
    """
    console.print(Text(f"engine at {', '.join(engine.addresses)} on {engine.database}"))
    if engine.metrics_url:
        console.print(Text(f"metrics at {engine.metrics_url}"))
    await _until_serving(engine, console=console, once=once)
    address = reachable(engine.addresses[0])
    async with (
        _processor() as target,
        Client(address, namespace=orders.name, timeout=_PATIENCE_SECONDS) as client,
    ):
        console.print(Text(f"processor at {target}\n"))
        try:
            await register(client, target)
        except ProgressorError as error:
            raise ScenarioError("register its namespace", f"{error} ({error.reason})") from error
        played = await Scenario(client, console=console, run=secrets.token_hex(3)).play()
        await _show_trace(address, played, console=console)
        if not once:
            _invite(engine, address, played, console=console)
            await forever()


def reachable(address: str) -> str:
    """Return the address by which a program on this machine reaches a listener at `address`."""
    host, colon, port = address.rpartition(":")
    loopback = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104  # read, not bound
    return f"{loopback.get(host, host)}{colon}{port}"


async def _until_serving(engine: Engine, *, console: Console, once: bool) -> None:
    if not engine.serving.is_set():
        console.print(Text("waiting for PostgreSQL …", style="dim"))
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS if once else None):
            await engine.serving.wait()
    except TimeoutError as error:
        why = f"{engine.database} is away for {_PATIENCE_SECONDS:.0f} s"
        raise ScenarioError("reach PostgreSQL", why) from error


@contextlib.asynccontextmanager
async def _processor() -> AsyncIterator[str]:
    async with contextlib.AsyncExitStack() as stack:
        try:
            target = await stack.enter_async_context(orders.running(BIND_DEFAULT))
        except RuntimeError:
            # Somebody has our port. Ours is better kept: orders of an earlier run find us there
            # even before the namespace is brought up to date.
            target = await stack.enter_async_context(orders.running(_ANY_PORT))
        yield target


async def _show_trace(address: str, played: Played, *, console: Console) -> None:
    async with Client(address, namespace=orders.name, codec=BYTES) as client:
        for order_id in (played.shipped, played.expired):
            trace = await client.trace(order_id)
            console.print()
            console.print(Rule(Text(f"trace of {order_id}"), style="dim", align="left"))
            console.print(timeline(trace.tasks))


def _invite(engine: Engine, address: str, played: Played, *, console: Console) -> None:
    where = "" if address == "127.0.0.1:7420" else f" --address {address}"
    order = '{"item":"tea","price":7}'
    console.print(Text(f"\nserving at {', '.join(engine.addresses)} until Ctrl-C; try", "bold"))
    for command in (
        f"progressor trace -n {orders.name} {played.shipped}{where}",
        f"progressor start -n {orders.name} mine --args '{order}'{where}",
        f'progressor call -n {orders.name} mine --args \'{{"type":"pay","amount":7}}\'{where}',
    ):
        # Not wrapped, so that it can be copied.
        console.print(Text(f"  {command}"), soft_wrap=True)
