"""The command console: the web console of an engine."""

import contextlib
import dataclasses
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

from progressor.cli.engine.contexts import check_url
from progressor.cli.input.options import ADDRESS, EngineOptions, bad_input, option
from progressor.cli.input.signals import forever, run_loop, until_signal
from progressor.cli.output import print_line
from progressor.console.app import build
from progressor.console.options import Options
from progressor.console.serving import serving
from progressor.sdk import Tls
from progressor.settings.addresses import HttpBind, http_bind
from progressor.wire.openid import SCOPE, OpenIdClient, TokenKind

_BIND = "127.0.0.1:7480+"
_BASE = re.compile(r"(/[A-Za-z0-9._~-]+)+")
_PUBLIC = re.compile(r"https?://[A-Za-z0-9.:\[\]-]+/?")
_NAME = re.compile(r"\{([^{}]*)\}")
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}


def _check_link(option: str, template: str, names: set[str]) -> None:
    """Check that a template of links leads to a web page, and has none but known names."""
    given = set(_NAME.findall(template))
    if template and not (template.startswith(("http://", "https://")) and given <= names):
        known = " and ".join(f"{{{it}}}" for it in sorted(names))
        raise bad_input(option, f"must be like https://…, with {known}, got {template!r}")


@Parameter(name="*", group=Group("Addresses", sort_key=5))
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """How browsers reach the console, and where its links to other systems lead."""

    base_path: str = ""
    """The path under which a reverse proxy serves the console, such as /progressor."""
    public_url: str = ""
    """How browsers reach the reverse proxy, such as https://ops.example.com."""
    trace_link: str = ""
    """A template of links to traces, such as https://jaeger.example.com/trace/{trace_id}."""
    log_link: str = ""
    """A template of links to logs, with {namespace} and {process_id}."""

    def __post_init__(self) -> None:
        if self.base_path and not _BASE.fullmatch(self.base_path):
            raise bad_input("--base-path", f"must be like /progressor, got {self.base_path!r}")
        if self.public_url and not _PUBLIC.fullmatch(self.public_url):
            example = "https://ops.example.com"
            raise bad_input("--public-url", f"must be like {example}, got {self.public_url!r}")
        _check_link("--trace-link", self.trace_link, {"trace_id"})
        _check_link("--log-link", self.log_link, {"namespace", "process_id"})


@Parameter(name="*", group=Group("OpenID Connect", sort_key=6))
@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OpenIdInput:
    """The issuer at which visitors can log in, and how it knows the console."""

    oidc_issuer: str = ""
    """The OpenID Connect issuer at which visitors can log in."""
    oidc_client_id: str = ""
    """The client id of the console at the issuer."""
    oidc_client_secret_file: Path | None = None
    """A file with the client's secret, if it has one."""
    oidc_scope: str = SCOPE
    """The scopes to request from the issuer."""
    oidc_token: TokenKind = "access"  # noqa: S105  # a kind of token
    """The token to send to the engine: access or id."""
    oidc_issuer_ca: Path | None = None
    """A PEM file of the authorities that certify the issuer."""

    def __post_init__(self) -> None:
        if not self.oidc_issuer:
            if self.oidc_client_id or self.oidc_client_secret_file:
                raise bad_input("--oidc-issuer", "must be given with --oidc-client-id")
            return
        check_url("--oidc-issuer", self.oidc_issuer)
        if not self.oidc_client_id:
            raise bad_input("--oidc-client-id", "must be given with --oidc-issuer")
        if "openid" not in self.oidc_scope.split():
            raise bad_input("--oidc-scope", f"must have openid, got {self.oidc_scope!r}")

    def client(self) -> OpenIdClient | None:
        """Return the console as its issuer knows it; None without one."""
        if not self.oidc_issuer:
            return None
        return OpenIdClient(
            issuer=self.oidc_issuer,
            client_id=self.oidc_client_id,
            client_secret=_secret_in(self.oidc_client_secret_file),
            scope=self.oidc_scope,
            token=self.oidc_token,
            ca=self.oidc_issuer_ca,
        )


def _secret_in(path: Path | None) -> str:
    if path is None:
        return ""
    option = "--oidc-client-secret-file"
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "is not UTF-8"
        raise bad_input(option, f"{path}: {why}") from error
    if not secret or not secret.isprintable():
        raise bad_input(option, f"{path}: must have one line")
    return secret


def console(
    *,
    bind: Annotated[
        str, option("Where to listen for HTTP: host:port, or host:port+ for that port or above.")
    ] = _BIND,
    read_only: Annotated[bool, option("Offer no actions.")] = False,
    allow_actions: Annotated[
        bool,
        option(
            "Offer actions to everybody who reaches the console, although the engine has no access "
            "control and --bind is not this machine alone."
        ),
    ] = False,
    addresses: Addresses = Addresses(),
    openid: OpenIdInput = OpenIdInput(),
    engine: EngineOptions = EngineOptions(),
) -> None:
    """Serve the web console of an engine until Ctrl-C.

    Visitors of an engine with access control log in, with a token or at an issuer of OpenID
    Connect, and see and do what their bindings allow. The token of a context or of --token-file is
    not used.
    """
    where = http_bind("--bind", bind)
    is_local = where.host in _LOOPBACK
    if openid.oidc_issuer and not (is_local or addresses.public_url):
        wrong = "must be given with --oidc-issuer if --bind is not this machine alone"
        raise bad_input("--public-url", wrong)
    options = Options(
        address=engine.address,
        identity={"tls": engine.identity["tls"]},
        is_local=is_local,
        is_read_only=read_only,
        allows_actions=is_local or allow_actions,
        command_options=engine.again,
        openid=openid.client(),
        **dataclasses.asdict(addresses),
    )
    run_loop(until_signal(_serve(options, where)))


@contextlib.asynccontextmanager
async def beside(engine: str, tls: Tls | None) -> AsyncIterator[str]:
    """Serve a console of an engine in this process within the context; return its address."""
    command_options = "" if engine == ADDRESS else f" --address {engine}"
    options = Options(address=engine, identity={"tls": tls}, command_options=command_options)
    async with serving(build(options), http_bind("--bind", _BIND)) as address:
        yield address


async def _serve(options: Options, bind: HttpBind) -> None:
    async with serving(build(options), bind, base_path=options.base_path) as address:
        print_line(f"console of {options.address} at {address}")
        await forever()
