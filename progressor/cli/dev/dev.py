"""The command dev: an engine, an example's processor and its scenario, all in one process."""

import contextlib
import dataclasses
import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from progressor import errors
from progressor.cli.dev.showcase import EXAMPLES, show
from progressor.cli.engine.hosting import host
from progressor.cli.input.inputs import bad_input, option
from progressor.cli.input.options import DEFAULT_SETTINGS, Settings
from progressor.cli.input.signals import run_loop
from progressor.cli.output.output import SafeConsole
from progressor.settings.config import Config


def dev(
    *,
    once: Annotated[bool, option("Exit after the example: with 0, or 1 and the reason.")] = False,
    ephemeral: Annotated[
        bool, option("Embed a PostgreSQL whose data is deleted at the end.")
    ] = False,
    example: Annotated[
        Literal["order", "rollout", "job", "mapreduce", "nightly"],
        option(
            "The example: orders; a rollout of schema changes with gates; a job of nine tasks; a "
            "word count of a thousand pages; a nightly schedule."
        ),
    ] = "order",
    settings: Settings = DEFAULT_SETTINGS,
) -> None:
    """Run an engine and an example's processor, run the example, then serve until Ctrl-C."""
    config = _for_people(settings.load())
    if config.server.tls_certificate is not None:
        raise errors.ConfigError("server.tls_certificate", "progressor dev does not support TLS")
    if config.server.workers != 1:
        raise errors.ConfigError("server.workers", "must be 1 for progressor dev")
    console = SafeConsole(highlight=False)
    work = functools.partial(show, console=console, once=once, example=EXAMPLES[example])
    with _data(config, ephemeral=ephemeral) as used:
        if not used.database.dsn:
            where = used.database.data_directory
            console.print(f"starting PostgreSQL in {where}", style="dim", markup=False)
        run_loop(host(used, work=work))


def _for_people(config: Config) -> Config:
    """Return `config` with a log of warnings only, unless the level is given."""
    if "log.level" in config.sources:
        return config
    return dataclasses.replace(config, log=dataclasses.replace(config.log, level="warning"))


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
