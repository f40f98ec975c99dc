"""How a console runs: which engine it shows, where, and what visitors may do."""

import dataclasses
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from progressor.wire.openid import OpenIdClient


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What `build` makes a console of.

    ``identity``: the arguments of a client with which the engine is reached, without a token: each
    visitor brings their own. ``base_path``: where the console is mounted, such as ``/progressor``;
    "": at the root. ``public_url``: how browsers reach it behind a reverse proxy, if not by the
    ``Host`` that the proxy sends. ``is_local``: whether only this machine can reach it.
    ``is_read_only``: whether it offers no actions to anybody; ``allows_actions``: whether it offers
    them to visitors of an engine without access control. ``trace_link`` and
    ``log_link``: templates of links to other systems, with ``{trace_id}``, ``{namespace}`` and
    ``{process_id}``; "": there are none. ``command_options``: what a command needs to reach the
    same engine, as in ``" --address 127.0.0.1:7421"``. ``openid``: the client as which the console
    lets visitors log in at an issuer; None: they log in with tokens alone.
    """

    address: str
    identity: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    base_path: str = ""
    public_url: str = ""
    is_local: bool = True
    is_read_only: bool = False
    allows_actions: bool = True
    trace_link: str = ""
    log_link: str = ""
    command_options: str = ""
    openid: OpenIdClient | None = None

    def trace_of(self, trace_id: str) -> str:
        """Return the address of a trace; "" without a template, or an id."""
        return _filled(self.trace_link, trace_id=trace_id) if trace_id else ""

    def logs_of(self, namespace: str, process_id: str) -> str:
        """Return the address of the logs of a process; "" without a template."""
        return _filled(self.log_link, namespace=namespace, process_id=process_id)


def _filled(template: str, **values: str) -> str:
    for name, value in values.items():
        template = template.replace(f"{{{name}}}", quote(value, safe=""))
    return template
