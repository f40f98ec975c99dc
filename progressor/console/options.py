"""How a console runs: which engine it shows, where, and what visitors may do."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What `build` makes a console of.

    ``identity``: the arguments of a client with which the engine is reached, without a token: each
    visitor brings their own. ``base_path``: where the console is mounted, such as ``/progressor``;
    "": at the root. ``is_local``: whether only this machine can reach it. ``allows_actions``:
    whether visitors of an engine without access control may change anything. ``trace_link`` and
    ``log_link``: templates of links to other systems, with ``{trace_id}``, ``{namespace}`` and
    ``{process_id}``; "": there are none. ``command_options``: what a command needs to reach the
    same engine, as in ``" --address 127.0.0.1:7421"``.
    """

    address: str
    identity: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    base_path: str = ""
    is_local: bool = True
    allows_actions: bool = True
    trace_link: str = ""
    log_link: str = ""
    command_options: str = ""
