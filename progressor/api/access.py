"""AccessService: the identity of the caller, bindings and API tokens."""

import dataclasses
import datetime as dt
import logging
from collections.abc import Callable
from typing import Annotated

from progressor.api.calls import page_tokens
from progressor.api.calls.filters import if_given
from progressor.api.calls.page_tokens import Listing
from progressor.api.calls.servicer import Backend, Servicer, reading
from progressor.api.calls.traces import CallContext, caller_of
from progressor.api.calls.validation import Id, PageSize, check_id, check_namespace_name
from progressor.api.guard.rules import ANYWHERE, RULES
from progressor.domain.access.answers import Decision, Identity
from progressor.domain.access.audit import AuditEntry, AuditFilter, AuditHead
from progressor.domain.access.rights import (
    EVERYTHING,
    Binding,
    Permissions,
    Principal,
    Right,
    Role,
    principal_fault,
)
from progressor.domain.access.tokens import NAME_RULE, ApiToken, is_token_name
from progressor.storage.access.audit import Place
from progressor.v1 import access_service_pb2 as pb
from progressor.wire import fields as wire
from progressor.wire.shapes import UNSENT, Field, Shape, between, enum_numbers, flat

_log = logging.getLogger(__name__)

LIFETIME_MIN = dt.timedelta(seconds=1)
LIFETIME_MAX = dt.timedelta(days=3660)

_ROLES = {number: role for role, number in enum_numbers(Role, pb.Role.DESCRIPTOR).items()}


def _check_principal(value: str, field: str) -> None:
    check_id(value, field)
    if fault := principal_fault(value):
        wire.refuse(field, f"{fault}, got {wire.shown(value)}")


def _check_namespaces(value: str, field: str) -> None:
    if value != EVERYTHING:
        check_namespace_name(value.removesuffix("*"), field)


def _role_of(message: pb.Binding, path: str, _: object) -> Role:
    role = _ROLES.get(message.role)
    if role is None:
        wire.refuse(f"{path}role", "must be a role")
    return role


def _check_token_name(value: str, field: str) -> None:
    if not is_token_name(value):
        wire.refuse(field, f"{NAME_RULE}, got {wire.shown(value)}")


def _check_rpc(value: str, field: str) -> None:
    if value not in RULES:
        wire.refuse(field, f"unknown RPC {wire.shown(value)}")


BINDING = Shape(
    Binding,
    pb.Binding,
    principal=_check_principal,
    role=Field(read=_role_of),
    namespace=_check_namespaces,
    created_at=UNSENT,
    created_by=UNSENT,
)
"""A binding as a request sends it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BindingRequest:
    binding: Annotated[Binding, Field(shape=BINDING, given=True)]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest:
    name: Annotated[str, _check_token_name]
    lifetime: Annotated[dt.timedelta | None, between(LIFETIME_MIN, LIFETIME_MAX)]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TokenKey:
    token_id: Id


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Whether a principal, by default the caller, may send a request."""

    principal: Annotated[str, if_given(check_id)]
    groups: tuple[str, ...]
    rpc: Annotated[str, _check_rpc]
    place: Annotated[str, Field(name="namespace", check=if_given(check_namespace_name))]


binding_from_wire = Shape(BindingRequest, pb.AddBindingRequest).read
bindings_from_wire = page_tokens.BINDINGS.listing(pb.ListBindingsRequest).read
token_from_wire = Shape(TokenRequest, pb.CreateTokenRequest).read
token_key_from_wire = Shape(TokenKey, pb.RevokeTokenRequest).read
tokens_from_wire = page_tokens.ACCESS_TOKENS.listing(pb.ListTokensRequest).read


def _from_number(message: pb.ListAuditRequest, _path: str, _: object) -> int | None:
    """Return the number to go on behind; None: it is a list from the newest."""
    if not message.HasField("after_number"):
        return None
    if message.page_token:
        wire.refuse("page_token", "must be empty with after_number")
    if message.after_number < 0:
        wire.refuse("after_number", f"must be at least 0, got {message.after_number}")
    return message.after_number


_AUDIT_FILTER = Shape(
    AuditFilter,
    pb.ListAuditRequest,
    principal=if_given(check_id),
    method=if_given(check_id),
    namespace=if_given(check_namespace_name),
    object_id=if_given(check_id),
    result=if_given(check_id),
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequest:
    """A page of entries, behind a place in the list or behind a number of the chain."""

    wanted: Annotated[AuditFilter, flat(_AUDIT_FILTER)]
    after: Annotated[Place | None, page_tokens.AUDIT.field]
    after_number: Annotated[int | None, Field(read=_from_number)]
    limit: PageSize


audit_from_wire = Shape(AuditRequest, pb.ListAuditRequest).read
question_from_wire = Shape(Question, pb.CheckAccessRequest).read

binding_to_wire = Shape(Binding, pb.Binding).message
token_to_wire = Shape(ApiToken, pb.Token).message
decision_to_wire = Shape(Decision, pb.CheckAccessResponse).message
identity_to_wire = Shape(Identity, pb.WhoAmIResponse).message
entry_to_wire = Shape(AuditEntry, pb.AuditEntry).message
head_to_wire = Shape(AuditHead, pb.GetAuditHeadResponse).message


class AccessServicer(Servicer):
    """Manages bindings and tokens, and answers questions about the caller's access."""

    service = pb.DESCRIPTOR.services_by_name["AccessService"]

    def __init__(self, backend: Callable[[], Backend], *, is_controlled: bool) -> None:
        super().__init__(backend)
        self._is_controlled = is_controlled

    @reading(lambda _: None)
    async def who_am_i(self, _message: None, context: CallContext) -> pb.WhoAmIResponse:
        caller = caller_of(context)
        bindings: tuple[Binding, ...] = ()
        if self._is_controlled:
            bindings = self._backend().access.rules.bindings_of(caller.principal)
        identity = Identity(
            principal=caller.principal.name,
            groups=caller.principal.groups,
            bindings=bindings,
            is_access_controlled=self._is_controlled,
        )
        return identity_to_wire(identity)

    @reading(question_from_wire)
    async def check_access(
        self, question: Question, context: CallContext
    ) -> pb.CheckAccessResponse:
        caller = caller_of(context)
        permissions = caller.permissions
        if question.principal not in {"", caller.principal.name}:
            caller.require("CheckAccess", Right.ADMINISTER, EVERYTHING)
            principal = Principal(name=question.principal, groups=question.groups)
            permissions = self._backend().access.rules.permissions_of(principal)
        return decision_to_wire(_decided(question, permissions))

    @reading(binding_from_wire)
    async def add_binding(
        self, asked: BindingRequest, context: CallContext
    ) -> pb.AddBindingResponse:
        author = caller_of(context).principal.name
        added = await self._backend().access.add(asked.binding, author=author)
        _log.info("binding added", extra={**_facts(added), "author": author})
        return pb.AddBindingResponse(binding=binding_to_wire(added))

    @reading(binding_from_wire)
    async def remove_binding(
        self, asked: BindingRequest, context: CallContext
    ) -> pb.RemoveBindingResponse:
        removed = await self._backend().access.remove(asked.binding)
        author = caller_of(context).principal.name
        _log.info("binding removed", extra={**_facts(removed), "author": author})
        return pb.RemoveBindingResponse()

    @reading(bindings_from_wire)
    async def list_bindings(
        self, asked: Listing[Binding | None], _: CallContext
    ) -> pb.ListBindingsResponse:
        found = await self._backend().access.bindings(after=asked.after, limit=asked.limit + 1)
        page, token = page_tokens.BINDINGS.page(found, asked.limit, lambda it: it)
        return pb.ListBindingsResponse(bindings=map(binding_to_wire, page), next_page_token=token)

    @reading(token_from_wire)
    async def create_token(
        self, asked: TokenRequest, context: CallContext
    ) -> pb.CreateTokenResponse:
        author = caller_of(context).principal.name
        created, text = await self._backend().access.create_token(
            asked.name, lifetime=asked.lifetime, author=author
        )
        facts = {"token_id": created.token_id, "token_name": created.name, "author": author}
        _log.info("token created", extra=facts)
        return pb.CreateTokenResponse(token=token_to_wire(created), secret_token=text)

    @reading(token_key_from_wire)
    async def revoke_token(self, key: TokenKey, context: CallContext) -> pb.RevokeTokenResponse:
        revoked = await self._backend().access.revoke(key.token_id)
        author = caller_of(context).principal.name
        facts = {"token_id": revoked.token_id, "token_name": revoked.name, "author": author}
        _log.info("token revoked", extra=facts)
        return pb.RevokeTokenResponse(token=token_to_wire(revoked))

    @reading(tokens_from_wire)
    async def list_tokens(self, asked: Listing[str], _: CallContext) -> pb.ListTokensResponse:
        found = await self._backend().access.list_tokens(after=asked.after, limit=asked.limit + 1)
        page, token = page_tokens.ACCESS_TOKENS.page(found, asked.limit, lambda it: it.token_id)
        return pb.ListTokensResponse(tokens=map(token_to_wire, page), next_page_token=token)

    @reading(audit_from_wire)
    async def list_audit(self, asked: AuditRequest, context: CallContext) -> pb.ListAuditResponse:
        caller, audit = caller_of(context), self._backend().audit
        patterns = caller.permissions.patterns_of(Right.ADMINISTER)
        if asked.after_number is not None:
            page, number = await audit.follow(
                asked.wanted, patterns, after=asked.after_number, limit=asked.limit
            )
            return pb.ListAuditResponse(entries=map(entry_to_wire, page), last_number=number)
        number = (await audit.head()).number if asked.after is None else 0
        page, place = await audit.page(asked.wanted, patterns, after=asked.after, limit=asked.limit)
        return pb.ListAuditResponse(
            entries=map(entry_to_wire, page),
            next_page_token="" if place is None else page_tokens.AUDIT.write(place),
            last_number=number,
        )

    @reading(lambda _: None)
    async def get_audit_head(self, _message: None, _: CallContext) -> pb.GetAuditHeadResponse:
        return head_to_wire(await self._backend().audit.head())


def _decided(question: Question, permissions: Permissions) -> Decision:
    rule, place = RULES[question.rpc], question.place or EVERYTHING
    right, binding = rule.right, None
    if right is not None:
        binding = permissions.binding_for(right, place)
        is_anywhere = rule.scope == ANYWHERE or not question.place
        if binding is None and is_anywhere and rule.scope.startswith(ANYWHERE):
            binding = permissions.any_binding_for(right)
    return Decision(
        is_allowed=right is None or binding is not None,
        right="" if right is None else right.value,
        binding=binding,
        shows_payloads=right is Right.CALL or permissions.allow(Right.READ_PAYLOADS, place),
    )


def _facts(binding: Binding) -> dict[str, str]:
    return {
        "principal": binding.principal,
        "role": binding.role.value,
        "namespaces": binding.namespace,
    }
