"""Decides whether a request may be served, and what its answer shows.

Without access control every caller may do everything, and the guard is not used.
"""

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message

from progressor import access_errors, errors
from progressor.api.guard.callers import Callers, Credentials, UnknownKeyError
from progressor.api.guard.payloads import hide
from progressor.api.guard.rules import RULES
from progressor.domain.access.rights import (
    EVERYTHING,
    Binding,
    Permissions,
    Principal,
    Right,
    Role,
)
from progressor.domain.processes.namespace import is_namespace_name
from progressor.storage.access.access import Access
from progressor.wire.fields import shown

_log = logging.getLogger(__name__)

_NOT_LOADED = "access control has not been loaded yet"

NO_PRINCIPAL = Principal(name="")
UNRESTRICTED = Permissions(
    Binding(principal=EVERYTHING, role=role, namespace=EVERYTHING) for role in Role
)


@dataclasses.dataclass(frozen=True, slots=True)
class Caller:
    """The principal that sends a request, and its permissions."""

    principal: Principal
    permissions: Permissions

    def may(self, right: Right, place: str) -> bool:
        """Return whether the caller has a right in a namespace; "" or `EVERYTHING`: in all."""
        return self.permissions.allow(right, place or EVERYTHING)

    def require(self, rpc: str, right: Right, place: str) -> None:
        """Log and raise PermissionDeniedError unless the caller has the right."""
        if self.may(right, place):
            return
        place = place or EVERYTHING
        if place != EVERYTHING and not is_namespace_name(place):
            # It has not been validated yet, and may be as long as a message allows.
            place = shown(place)
        name = self.principal.name
        facts = {"method": rpc, "principal": name, "right": right.value, "namespace": place}
        _log.warning("request denied", extra=facts)
        raise access_errors.PermissionDeniedError(name, right.value, place)


ANYBODY = Caller(NO_PRINCIPAL, UNRESTRICTED)
"""Every caller of an engine without access control."""


class Guard:
    """Checks the requests of an engine with access control."""

    def __init__(self, access: Callable[[], Access], callers: Callers) -> None:
        """Build a guard; ``access`` raises `errors.StorageUnavailableError` until it is loaded."""
        self._access, self._callers = access, callers

    async def authenticated(self, rpc: str, credentials: Credentials) -> Caller:
        """Return the caller of a request; may wait for an issuer's keys.

        Raises:
            UnauthenticatedError: The credentials are not valid; the log says why.
        """
        try:
            return self._caller(credentials)
        except access_errors.UnauthenticatedError as error:
            if not isinstance(error, UnknownKeyError):
                _log_refusal(rpc, credentials, error)
                raise
            keys = error.keys
        await keys.ask()
        return self.authenticated_now(rpc, credentials)

    def authenticated_now(self, rpc: str, credentials: Credentials) -> Caller:
        """Return the caller, as `authenticated` does, but without waiting for keys."""
        try:
            return self._caller(credentials)
        except access_errors.UnauthenticatedError as error:
            _log_refusal(rpc, credentials, error)
            raise

    def _caller(self, credentials: Credentials) -> Caller:
        access = self._access()
        if not access.is_known:
            raise errors.StorageUnavailableError(_NOT_LOADED)
        principal = self._callers.principal_of(credentials, access)
        return Caller(principal, access.rules.permissions_of(principal))

    def is_unchanged(self, caller: Caller, credentials: Credentials) -> bool:
        """Return whether the credentials still prove this caller, with these permissions."""
        try:
            now = self._caller(credentials)
        except errors.ProgressorError:
            return False
        return now.permissions is caller.permissions and now.principal == caller.principal

    def check(self, rpc: str, request: Any, caller: Caller) -> None:  # noqa: ANN401  # of the RPC
        """Raise PermissionDeniedError unless the caller may send the request."""
        right, places = RULES[rpc].right, tuple(RULES[rpc].places(request))
        if right is None:
            return
        for place in places:
            caller.require(rpc, right, place)
        if not places and caller.permissions.any_binding_for(right) is None:
            caller.require(rpc, right, EVERYTHING)

    def show(self, rpc: str, request: Any, answer: Message, caller: Caller) -> None:  # noqa: ANN401  # of the RPC
        """Empty the payloads of an answer that its caller may not see."""
        # A caller may see the answers to its calls.
        if RULES[rpc].right is Right.CALL:
            return
        if caller.permissions.allow(Right.READ_PAYLOADS, EVERYTHING):
            return
        hide(
            answer,
            getattr(request, "namespace", ""),
            lambda namespace: caller.permissions.allow(Right.READ_PAYLOADS, namespace),
        )


def _log_refusal(
    rpc: str, credentials: Credentials, error: access_errors.UnauthenticatedError
) -> None:
    facts = {"method": rpc, "peer": credentials.peer, "why": error.fault}
    _log.warning("request without valid credentials", extra=facts)
