"""With what a connection to a processor is opened: TLS, and a token on each call and stream."""

import dataclasses
from collections.abc import Sequence

from grpc import aio

from progressor.wire.tls import NO_PROXY, TlsMaterial, bearer, stays_on_machine


class CredentialsError(Exception):
    """The processor of a namespace cannot be connected to by the credentials that it names."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """``tls`` None: no TLS. ``server_name``: expected instead of the host of the target."""

    tls: TlsMaterial | None = None
    server_name: str = ""
    token: str = dataclasses.field(default="", repr=False)

    def fault(self, targets: Sequence[str]) -> str:
        """Return why they cannot be used: the token would leave the machine in the clear."""
        if self.token and self.tls is None:
            for target in targets:
                if not stays_on_machine(target):
                    return f"the token is not sent to {target} without TLS"
        return ""

    def channel(self, target: str, options: Sequence[tuple[str, int | str]]) -> aio.Channel:
        if self.token and self.tls is None:
            options = (*options, NO_PROXY)
        if self.tls is None:
            return aio.insecure_channel(target, options=options)
        if self.server_name:
            options = (*options, ("grpc.ssl_target_name_override", self.server_name))
        return aio.secure_channel(target, self.tls.channel_credentials(), options=options)

    @property
    def authorization(self) -> tuple[tuple[str, str], ...]:
        """The metadata of each call and stream."""
        return bearer(self.token) if self.token else ()


PLAIN = Credentials()
