"""``client.access``: who the caller is, who may do what, and API tokens."""

from typing import Any

from progressor.domain.access.answers import Decision, Identity
from progressor.domain.access.rights import Binding, Role
from progressor.domain.access.tokens import ApiToken
from progressor.sdk.client.resource import Resource, blocking, iterated, sent
from progressor.sdk.codec.wire import Seconds, duration_to_wire
from progressor.sdk.transport.connection import BlockingConnection, Connection
from progressor.sdk.transport.exchange import Exchange, Listing, nothing
from progressor.v1 import access_service_pb2 as pb
from progressor.wire.shapes import Shape, enum_numbers

read_binding = Shape(Binding, pb.Binding).read
read_token = Shape(ApiToken, pb.Token).read
read_decision = Shape(Decision, pb.CheckAccessResponse).read
read_identity = Shape(Identity, pb.WhoAmIResponse).read

_ROLES = enum_numbers(Role, pb.Role.DESCRIPTOR)


def _binding(principal: str, role: Role, namespace: str) -> pb.Binding:
    return pb.Binding(principal=principal, role=_ROLES[Role(role)], namespace=namespace)


class Access(Resource[Connection]):
    """The requests about access; `timeout` is in seconds or a timedelta, None: the client's.

    Raises:
        PermissionDeniedError: All but `who_am_i`, and `check` for oneself, need the role admin in
            all namespaces.
    """

    @sent
    def who_am_i(self, *, timeout: Seconds | None = None) -> Exchange[Identity]:
        """Return who the engine takes this client for, and its bindings."""
        return Exchange(pb.WhoAmIRequest(), read_identity, timeout, repeatable=True)

    @sent
    def check(
        self,
        rpc: str,
        *,
        namespace: str = "",
        principal: str = "",
        groups: tuple[str, ...] = (),
        timeout: Seconds | None = None,
    ) -> Exchange[Decision]:
        """Return whether a request would be served, and which binding allows it.

        Args:
            rpc: The name of an RPC, as in Start.
            namespace: Where; "": in all of them.
            principal: Who would send it; "": this client.
            groups: Further names of that principal.
            timeout: As in all requests.
        """
        request = pb.CheckAccessRequest(
            rpc=rpc, namespace=namespace, principal=principal, groups=groups
        )
        return Exchange(request, read_decision, timeout, repeatable=True)

    @sent
    def add_binding(
        self, principal: str, role: Role, namespace: str, *, timeout: Seconds | None = None
    ) -> Exchange[Binding]:
        """Give a role to a principal in a namespace; one that it has already stays as it is.

        Principal and namespace are patterns: a name, the beginning of one followed by ``*``, or
        ``*`` alone.

        Raises:
            TooManyBindingsError: There are 10,000.
        """
        request = pb.AddBindingRequest(binding=_binding(principal, role, namespace))
        return Exchange(request, _read_added, timeout, repeatable=True)

    @sent
    def remove_binding(
        self, principal: str, role: Role, namespace: str, *, timeout: Seconds | None = None
    ) -> Exchange[None]:
        """Take a role back, exactly as it was given.

        Raises:
            BindingNotFoundError: It was not given.
        """
        request = pb.RemoveBindingRequest(binding=_binding(principal, role, namespace))
        return Exchange(request, nothing, timeout)

    @iterated
    def bindings(self, *, page_size: int = 100, timeout: Seconds | None = None) -> Listing[Binding]:
        """Iterate over the bindings in the order of principal, role and namespace."""
        request = pb.ListBindingsRequest(page_size=page_size)
        return Listing(request, lambda message: map(read_binding, message.bindings), timeout)

    @sent
    def create_token(
        self, name: str, *, lifetime: Seconds | None = None, timeout: Seconds | None = None
    ) -> Exchange[tuple[ApiToken, str]]:
        """Create an API token; return it with its text, which nobody can read again.

        Its principal is ``token:NAME``. Several tokens may have one name, so that a new one can
        replace an old one.

        Args:
            name: 1 .. 128 bytes.
            lifetime: In seconds or a timedelta; None: it is valid until it is revoked.
            timeout: As in all requests.

        Raises:
            TooManyTokensError: There are 10,000.
        """
        request = pb.CreateTokenRequest(name=name)
        if lifetime is not None:
            request.lifetime.CopyFrom(duration_to_wire(lifetime))
        return Exchange(request, _read_created, timeout)

    @sent
    def revoke_token(self, token_id: str, *, timeout: Seconds | None = None) -> Exchange[ApiToken]:
        """Revoke an API token for good.

        Raises:
            TokenNotFoundError: There is none of this id.
        """
        request = pb.RevokeTokenRequest(token_id=token_id)
        return Exchange(request, _read_revoked, timeout, repeatable=True)

    @iterated
    def tokens(self, *, page_size: int = 100, timeout: Seconds | None = None) -> Listing[ApiToken]:
        """Iterate over the API tokens in the order of their ids.

        Those that ended more than 90 days ago are deleted.
        """
        request = pb.ListTokensRequest(page_size=page_size)
        return Listing(request, lambda message: map(read_token, message.tokens), timeout)


def _read_added(message: Any) -> Binding:  # noqa: ANN401  # as `Exchange` has it
    return read_binding(message.binding)


def _read_created(message: Any) -> tuple[ApiToken, str]:  # noqa: ANN401  # as `Exchange` has it
    return read_token(message.token), message.secret_token


def _read_revoked(message: Any) -> ApiToken:  # noqa: ANN401  # as `Exchange` has it
    return read_token(message.token)


class SyncAccess(Resource[BlockingConnection]):
    """`Access` for programs without an event loop: blocking, safe in any thread."""

    who_am_i = blocking(Access.who_am_i)
    check = blocking(Access.check)
    add_binding = blocking(Access.add_binding)
    remove_binding = blocking(Access.remove_binding)
    bindings = blocking(Access.bindings)
    create_token = blocking(Access.create_token)
    revoke_token = blocking(Access.revoke_token)
    tokens = blocking(Access.tokens)
