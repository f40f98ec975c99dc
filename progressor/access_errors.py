"""The errors of access control: branches of the tree in ``errors``."""

from progressor.errors import NotFoundError, RequestError, StateError


class UnauthenticatedError(RequestError):
    """The request has no valid credentials.

    ``fault`` is only for the engine's log: an unknown sender must not learn the reason.
    """

    reason = "UNAUTHENTICATED"

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        super().__init__("the request has no valid credentials")


class PermissionDeniedError(RequestError):
    """No binding of the principal gives the right that the request needs.

    ``namespace`` is ``*`` where the right is needed in all of them.
    """

    reason = "PERMISSION_DENIED"

    def __init__(self, principal: str, right: str, namespace: str) -> None:
        self.principal, self.right, self.namespace = principal, right, namespace
        place = "all namespaces" if namespace == "*" else f"namespace {namespace!r}"
        super().__init__(f"{principal} has no right to {right} in {place}")


class BindingNotFoundError(NotFoundError):
    """No binding has this principal, role and namespace."""

    reason = "BINDING_NOT_FOUND"

    def __init__(self, principal: str, role: str, namespace: str) -> None:
        self.principal, self.role, self.namespace = principal, role, namespace
        super().__init__(f"{principal!r} has no binding as {role} in {namespace!r}")


class TokenNotFoundError(NotFoundError):
    """No API token has this id."""

    reason = "TOKEN_NOT_FOUND"

    def __init__(self, token_id: str) -> None:
        self.token_id = token_id
        super().__init__(f"token {token_id!r} does not exist")


class TooManyBindingsError(StateError):
    """The maximum number of bindings exists."""

    reason = "TOO_MANY_BINDINGS"

    def __init__(self, count_max: int) -> None:
        self.count_max = count_max
        super().__init__(f"there are already {count_max} bindings, the maximum; remove some first")


class TooManyTokensError(StateError):
    """The maximum number of API tokens exists."""

    reason = "TOO_MANY_TOKENS"

    def __init__(self, count_max: int) -> None:
        self.count_max = count_max
        super().__init__(
            f"there are already {count_max} tokens, the maximum; expired and revoked tokens are "
            "deleted after 90 days"
        )
