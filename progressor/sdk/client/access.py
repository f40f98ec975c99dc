"""``client.access``: who the caller is, who may do what, API tokens, and the audit."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

from progressor.domain.access.answers import Decision, Identity
from progressor.domain.access.audit import AuditEntry, AuditFilter, AuditHead
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
read_entry = Shape(AuditEntry, pb.AuditEntry).read
read_head = Shape(AuditHead, pb.GetAuditHeadResponse).read

_FILTER = Shape(AuditFilter, pb.ListAuditRequest)
_EVERYTHING = AuditFilter()
_FOLLOWED_MAX = 1000

FOLLOW_SECONDS = 1.0
"""How often `follow_audit` asks for more: as often as entries are added to the chain."""

_ROLES = enum_numbers(Role, pb.Role.DESCRIPTOR)


def _binding(principal: str, role: Role, namespace: str) -> pb.Binding:
    return pb.Binding(principal=principal, role=_ROLES[Role(role)], namespace=namespace)


class Access(Resource[Connection]):
    """The requests about access; `timeout` is in seconds or a timedelta, None: the client's.

    Raises:
        PermissionDeniedError: All but `who_am_i`, and `check` for oneself, need the role admin in
            all namespaces; `audit` and `follow_audit`, in any.
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
        """Create an API token; return it with its text, which cannot be read again.

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

    @iterated
    def audit(
        self,
        wanted: AuditFilter = _EVERYTHING,
        *,
        page_size: int = 100,
        timeout: Seconds | None = None,
    ) -> Listing[AuditEntry]:
        """Iterate over audit entries, the newest first, of the namespaces of which one is an admin.

        Raises:
            PermissionDeniedError: One is not an admin of the namespace that is `wanted`.
        """
        request = _FILTER.message(wanted)
        request.page_size = page_size
        return Listing(request, lambda message: map(read_entry, message.entries), timeout)

    @sent
    def audit_behind(
        self,
        number: int | None,
        wanted: AuditFilter = _EVERYTHING,
        *,
        page_size: int = _FOLLOWED_MAX,
        timeout: Seconds | None = None,
    ) -> Exchange[tuple[tuple[AuditEntry, ...], int]]:
        """Return up to `page_size` entries after a number of the chain, and where to continue.

        The returned number is the one to continue from. If there are no entries, either nothing new
        has been sealed, or none of the entries examined matched; in that case the number is larger.
        Without a number: no entries, and the number of the last one.
        """
        request = _FILTER.message(wanted)
        if number is None:
            request.page_size = 1
            return Exchange(request, lambda it: ((), it.last_number), timeout, repeatable=True)
        request.page_size, request.after_number = page_size, number
        return Exchange(request, _read_followed, timeout, repeatable=True)

    async def follow_audit(
        self,
        wanted: AuditFilter = _EVERYTHING,
        *,
        after: int | None = None,
        timeout: Seconds | None = None,
    ) -> AsyncIterator[AuditEntry]:
        """Iterate over entries in the order of the chain, waiting for new ones without end.

        Starts with the next new entry, or after the entry with the number `after` (0: with the
        first). To resume later without missing any, pass the number of the last entry seen.
        """
        while True:
            found, number = await self.audit_behind(after, wanted, timeout=timeout)
            for entry in found:
                yield entry
            if number == after:
                await asyncio.sleep(FOLLOW_SECONDS)
            after = number

    @sent
    def audit_head(self, *, timeout: Seconds | None = None) -> Exchange[AuditHead]:
        """Return both ends of the chain: keep them elsewhere to prove later what was before."""
        return Exchange(pb.GetAuditHeadRequest(), read_head, timeout, repeatable=True)


def _read_followed(message: Any) -> tuple[tuple[AuditEntry, ...], int]:  # noqa: ANN401  # as `Exchange` has it
    return tuple(map(read_entry, message.entries)), message.last_number


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
    audit = blocking(Access.audit)
    audit_behind = blocking(Access.audit_behind)
    audit_head = blocking(Access.audit_head)

    def follow_audit(
        self,
        wanted: AuditFilter = _EVERYTHING,
        *,
        after: int | None = None,
        timeout: Seconds | None = None,
    ) -> Iterator[AuditEntry]:
        """Iterate over entries as `Access.follow_audit` does."""
        while True:
            found, number = self.audit_behind(after, wanted, timeout=timeout)
            yield from found
            if number == after:
                time.sleep(FOLLOW_SECONDS)
            after = number
