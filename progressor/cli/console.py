"""The command console: the web console of an engine."""

import re
from typing import Annotated

from progressor.cli.input.options import EngineOptions, bad_input, option
from progressor.cli.input.signals import forever, run_loop, until_signal
from progressor.cli.output import print_line
from progressor.console.app import build
from progressor.console.options import Options
from progressor.console.serving import serving
from progressor.settings.addresses import HttpBind, http_bind

_BIND = "127.0.0.1:7480+"
_BASE = re.compile(r"(/[A-Za-z0-9._~-]+)+")
_PUBLIC = re.compile(r"https?://[A-Za-z0-9.:\[\]-]+/?")
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}


def console(
    *,
    bind: Annotated[
        str, option("Where to listen for HTTP: host:port, or host:port+ for that port or above.")
    ] = _BIND,
    base_path: Annotated[
        str, option("The path under which a reverse proxy serves the console, such as /progressor.")
    ] = "",
    public_url: Annotated[
        str,
        option(
            "The address at which browsers reach the reverse proxy, such as "
            "https://ops.example.com, if it sends another Host or --bind is this machine alone."
        ),
    ] = "",
    read_only: Annotated[bool, option("Offer no actions.")] = False,
    allow_actions: Annotated[
        bool,
        option(
            "Offer actions to everybody who reaches the console, although the engine has no access "
            "control and --bind is not this machine alone."
        ),
    ] = False,
    engine: EngineOptions = EngineOptions(),
) -> None:
    """Serve the web console of an engine until Ctrl-C.

    Visitors of an engine with access control log in, and see and do what their bindings allow. The
    token of a context or of --token-file is not used.
    """
    where = http_bind("--bind", bind)
    if base_path and not _BASE.fullmatch(base_path):
        raise bad_input("--base-path", f"must be like /progressor, got {base_path!r}")
    if public_url and not _PUBLIC.fullmatch(public_url):
        raise bad_input("--public-url", f"must be like https://example.com, got {public_url!r}")
    is_local = where.host in _LOOPBACK
    options = Options(
        address=engine.address,
        identity={"tls": engine.identity["tls"]},
        base_path=base_path,
        public_url=public_url,
        is_local=is_local,
        is_read_only=read_only,
        allows_actions=is_local or allow_actions,
        command_options=engine.again,
    )
    run_loop(until_signal(_serve(options, where)))


async def _serve(options: Options, bind: HttpBind) -> None:
    async with serving(build(options), bind, base_path=options.base_path) as address:
        print_line(f"console of {options.address} at {address}")
        await forever()
