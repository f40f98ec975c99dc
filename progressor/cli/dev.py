"""The commands dev, an engine with an example, and example-processor, for an engine elsewhere."""

import asyncio
import contextlib
import dataclasses
import functools
import logging
import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter
from cyclopts.validators import Number
from rich.console import Console
from rich.rule import Rule
from rich.text import Text

from progressor import errors
from progressor.cli.engine.hosting import host
from progressor.cli.engine.own_tls import CREDENTIALS, OwnTls, own_tls
from progressor.cli.input.options import Settings, bad_input, option
from progressor.cli.input.signals import forever, run_loop, until_signal
from progressor.cli.output import ExitCode, SafeConsole, exit_code_for
from progressor.cli.processes.timeline import timeline
from progressor.engine.engine import Engine
from progressor.example.mapreduce import MapReduceScenario
from progressor.example.nightly import NightlyScenario
from progressor.example.nine import NineScenario
from progressor.example.order import namespace, orders
from progressor.example.order_scenario import OrderScenario
from progressor.example.rollout import RolloutScenario
from progressor.example.scenario import (
    Scenario,
    ScenarioError,
    explaining,
    namespace_of,
    register,
)
from progressor.example.warehouse import warehouses
from progressor.sdk import BYTES, Client, Processor, ServerTls, Tls, Trust, running
from progressor.sdk.processor.server import BIND_DEFAULT
from progressor.settings.addresses import check_address
from progressor.settings.cells import MAIN, CellTable
from progressor.settings.config import Config
from progressor.telemetry.logs.setup import whole_log

_EXAMPLES: Mapping[str, type[Scenario]] = {
    "order": OrderScenario,
    "rollout": RolloutScenario,
    "job": NineScenario,
    "mapreduce": MapReduceScenario,
    "nightly": NightlyScenario,
}
_TIMEOUT_SECONDS = 90.0
_PAUSE_SECONDS = 1.0
_TRACES_SHOWN = 2

_log = logging.getLogger(__name__)


def dev(  # noqa: PLR0913  # one for each option
    *,
    once: Annotated[bool, option("Exit after the example: with 0, or 1 and the reason.")] = False,
    ephemeral: Annotated[
        bool, option("Embed a PostgreSQL whose data is deleted at the end.")
    ] = False,
    tls: Annotated[
        bool,
        option("Use TLS, with certificates that are made for this run and deleted at its end."),
    ] = False,
    example: Annotated[
        Literal["order", "rollout", "job", "mapreduce", "nightly"],
        option(
            "The example: orders; a rollout of schema changes with gates; a job of nine tasks; a "
            "word count of a thousand pages; a nightly schedule."
        ),
    ] = "order",
    cells: Annotated[
        int | None,
        Parameter(
            validator=Number(gte=1, lte=8),
            help="Spread namespaces over so many databases of the embedded PostgreSQL.",
        ),
    ] = None,
    no_console: Annotated[bool, option("Do without the web console.")] = False,
    settings: Settings = Settings(),
) -> None:
    """Run an engine and an example's processor, run the example, then serve until Ctrl-C."""
    config = settings.load()
    config.check_exposure()
    if config.server.tls_certificate is not None:
        words = "progressor dev makes certificates of its own: use --tls"
        raise errors.ConfigError("server.tls_certificate", words)
    if config.server.workers != 1:
        raise errors.ConfigError("server.workers", "must be 1 for progressor dev")
    if cells is not None:
        config = dataclasses.replace(config, cells=_cells(config, cells))
    if "log.level" not in config.sources:
        config = dataclasses.replace(config, log=dataclasses.replace(config.log, level="warning"))
    console = SafeConsole(highlight=False)
    scenario = _EXAMPLES[example](console=console, run=secrets.token_hex(3))
    with contextlib.ExitStack() as stack:
        used = stack.enter_context(_data(config, ephemeral=ephemeral))
        own = stack.enter_context(own_tls(used)) if tls else None
        work = functools.partial(_show, console=console, once=once, scenario=scenario, own=own)
        if not (once or no_console):
            work = functools.partial(_with_console, work=work, console=console, own=own)
        if not used.database.dsn:
            where = used.database.data_directory
            console.print(f"starting PostgreSQL in {where}", style="dim", markup=False)
        run_loop(host(used if own is None else own.applied(used), work=work))


def _cells(config: Config, count: int) -> tuple[CellTable, ...]:
    if config.cells or config.database.dsn:
        raise bad_input("--cells", "cannot be combined with database.dsn or [[cells]]")
    names = [MAIN, *(f"cell-{number}" for number in range(2, count + 1))]
    return tuple(CellTable(name=name) for name in names)


@contextlib.contextmanager
def _data(config: Config, *, ephemeral: bool) -> Iterator[Config]:
    if not ephemeral:
        yield config
        return
    if config.database.dsn:
        raise bad_input("--ephemeral", "cannot be combined with database.dsn")
    with tempfile.TemporaryDirectory(prefix="progressor-", ignore_cleanup_errors=True) as path:
        database = dataclasses.replace(config.database, data_directory=Path(path))
        yield dataclasses.replace(config, database=database)


async def _with_console(
    engine: Engine,
    *,
    work: Callable[[Engine], Awaitable[None]],
    console: Console,
    own: OwnTls | None,
) -> None:
    """Do the work of `dev` beside a web console, where what that needs is installed."""
    try:
        from progressor.cli.top.console import beside  # noqa: PLC0415  # an extra of its own
    except ModuleNotFoundError:
        await work(engine)
        return
    address = reachable(engine.addresses[0])
    async with beside(address, _client_tls(address, own)) as url:
        console.print(Text(f"console at {url}"))
        await work(engine)


def _client_tls(address: str, own: OwnTls | None) -> Tls | None:
    return None if own is None or address.startswith("unix:") else own.client


async def _show(
    engine: Engine, *, console: Console, once: bool, scenario: Scenario, own: OwnTls | None
) -> None:
    """Run a scenario and its processor, and print traces; then serve, unless `once`.

    Raises:
        ScenarioError: The scenario failed, or PostgreSQL stays unavailable with `once`.
    """
    console.print(Text(f"engine at {', '.join(engine.addresses)} on {engine.database}"))
    if engine.metrics_url:
        console.print(Text(f"metrics at {engine.metrics_url}"))
    await _until_serving(engine, console=console, once=once)
    address = reachable(engine.addresses[0])
    if own is not None:
        console.print(Text(f"TLS with certificates in {own.directory}, deleted at the end"))
    client_tls = _client_tls(address, own)
    served = {} if own is None else own.served
    async with _serving(scenario.processor, *scenario.others, **served) as target:
        reached = functools.partial(
            dataclasses.replace, processor_credentials="" if own is None else CREDENTIALS
        )
        config = scenario.namespace(target)
        async with Client(
            address, namespace=config.name, timeout=_TIMEOUT_SECONDS, tls=client_tls
        ) as client:
            console.print(Text(f"processor at {target}"))
            console.print()
            with explaining("register its namespace"):
                cell = await register(client, reached(config))
                for other in scenario.others:
                    await register(client, reached(namespace_of(other, target)), cell=cell)
            left = await scenario.play(client)
        async with Client(address, namespace=config.name, codec=BYTES, tls=client_tls) as client:
            for process_id in left[:_TRACES_SHOWN]:
                trace = await client.trace(process_id)
                console.print()
                console.print(Rule(Text(f"trace of {process_id}"), style="dim", align="left"))
                console.print(timeline(trace.tasks))
        if once:
            return
        where = "" if address == "127.0.0.1:7420" else f" --address {address}"
        console.print()
        console.print(Text(f"serving at {', '.join(engine.addresses)} until Ctrl-C; try", "bold"))
        if own is not None:
            console.print(Text(f"  {own.variables}"), soft_wrap=True)
        for command in scenario.commands:
            words = command.format(namespace=config.name, id=left[0])
            # Not wrapped, so that the command can be copied.
            console.print(Text(f"  progressor {words}{where}"), soft_wrap=True)
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
async def _serving(*processors: Processor[Any], **served: Any) -> AsyncIterator[str]:  # noqa: ANN401  # of `running`
    async with contextlib.AsyncExitStack() as stack:
        serve = functools.partial(running, *processors, **served)
        try:
            target = await stack.enter_async_context(serve(bind=BIND_DEFAULT))
        except RuntimeError:
            # The port is in use. It is preferred because processes of an earlier run find their
            # processor there even before the namespace is updated.
            target = await stack.enter_async_context(serve(bind="127.0.0.1:0"))
        yield target


@Parameter(name="*", group=Group("Security", sort_key=5))
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorSecurity:
    """By what a processor and an engine know each other."""

    tls_certificate: Path | None = None
    """Serve with TLS: the PEM file of the certificate, with its chain."""
    tls_key: Path | None = None
    """The PEM file of the certificate's key."""
    tls_client_ca: Path | None = None
    """Accept only engines with a certificate of the authorities in this PEM file."""
    trust_token_file: Path | None = None
    """Accept only engines that send one of the tokens in this file."""
    trust_identity: Annotated[tuple[str, ...], Parameter(negative="")] = ()
    """Accept only engines with this name in their certificate; may be repeated."""
    credentials: str = ""
    """The processor_credentials of the namespaces, by which engines reach this processor."""
    engine_tls_ca: Path | None = None
    """Use TLS to --engine, and trust the authorities in this PEM file."""
    engine_token_file: Path | None = None
    """Send the token in this file to --engine."""

    @property
    def served(self) -> Mapping[str, Any]:
        """The arguments of `running`."""
        tls = trust = None
        if self.tls_certificate is not None and self.tls_key is not None:
            tls = ServerTls(
                certificate=self.tls_certificate, key=self.tls_key, client_ca=self.tls_client_ca
            )
        if self.trust_token_file is not None or self.trust_identity:
            trust = Trust(token_file=self.trust_token_file, identities=self.trust_identity)
        return {"tls": tls, "trust": trust}

    def __post_init__(self) -> None:
        if (self.tls_certificate is None) != (self.tls_key is None):
            missing = "--tls-key" if self.tls_key is None else "--tls-certificate"
            raise bad_input(missing, "must be given: a certificate and its key belong together")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise bad_input("--tls-certificate", "must be given if --tls-client-ca is")

    def client(self, engine: str) -> Client:
        """Return a client of the engine in which the namespaces are registered."""
        tls = None if self.engine_tls_ca is None else Tls(ca=self.engine_tls_ca)
        return Client(engine, tls=tls, token=self.engine_token_file)


def example_processor(
    *,
    bind: Annotated[str, option("Where to listen: host:port or unix:/path.")] = BIND_DEFAULT,
    engine: Annotated[
        str | None, option("An engine in which to create or update the namespaces.")
    ] = None,
    target: Annotated[
        str | None, option("The address at which engines reach it, if not that of --bind.")
    ] = None,
    security: ProcessorSecurity = ProcessorSecurity(),
) -> None:
    """Run the processors of the namespaces orders and warehouse until SIGTERM or SIGINT."""
    check_address("--bind", bind, port_min=0)
    for name, address in {"--engine": engine, "--target": target}.items():
        if address is not None:
            check_address(name, address, port_min=1)
    with whole_log(level="info", log_format="auto"):
        run_loop(until_signal(_serve_orders(bind, engine, target, security)))


async def _serve_orders(
    bind: str, engine: str | None, target: str | None, security: ProcessorSecurity
) -> None:
    try:
        async with running(orders, warehouses, bind=bind, **security.served) as address:
            _log.info("processor serves", extra={"address": address})
            if engine is not None:
                await _register(engine, target or address, security)
            await forever()
    except ValueError as error:
        # Of a file; errors of requests are of other classes.
        raise errors.ConfigError("example-processor", str(error)) from error
    except RuntimeError as error:
        raise errors.ConfigError("--bind", f"cannot listen at {bind}: {error}") from error


async def _register(engine: str, target: str, security: ProcessorSecurity) -> None:
    """Register with an engine that may still be starting; retries until it succeeds."""
    reached = functools.partial(dataclasses.replace, processor_credentials=security.credentials)
    async with security.client(engine) as client:
        while True:
            try:
                cell = await register(client, reached(namespace(target)))
                await register(client, reached(namespace_of(warehouses, target)), cell=cell)
            except errors.ProgressorError as error:
                if exit_code_for(error) not in {ExitCode.UNAVAILABLE, ExitCode.DEADLINE}:
                    raise
                _log.warning("engine is unavailable", extra={"engine": engine, "error": str(error)})
                await asyncio.sleep(_PAUSE_SECONDS)
            else:
                _log.info("namespace registered", extra={"engine": engine, "target": target})
                return
