"""Bindings and API tokens: kept in PostgreSQL, and all of them in the memory of each replica.

A change raises the revision, which heartbeats read: a replica whose revision is another one reads
everything again. So a request is checked without asking PostgreSQL, and by what is no older than
the last heartbeat.
"""

import asyncio
import datetime as dt
import secrets
from collections.abc import Mapping

from progressor import access_errors
from progressor.domain.access import tokens
from progressor.domain.access.rights import (
    BINDINGS_MAX,
    TOKENS_MAX,
    AccessRules,
    Binding,
)
from progressor.domain.access.tokens import ApiToken, ValidToken
from progressor.storage.postgres import statements
from progressor.storage.postgres.context import StorageContext

_SQL = statements.load("access/access")

ENDED_TOKENS_AGE = dt.timedelta(days=90)
"""How long tokens stay listed after they have expired or were revoked."""


class Access:
    """Who may do what. ``rules`` and ``tokens`` are those of the last `refresh`."""

    def __init__(self, context: StorageContext) -> None:
        self._context = context
        self.rules = AccessRules()
        self.tokens: Mapping[str, ValidToken] = {}
        self.changed = asyncio.Event()
        """Set when `refresh` has to be called."""
        self._revision: int | None = None
        self._used: set[str] = set()

    @property
    def is_known(self) -> bool:
        """Whether `refresh` has succeeded once."""
        return self._revision is not None

    def heartbeat(self, revision: int) -> None:
        """Compare the revision that a heartbeat has read with the one in memory."""
        if revision != self._revision:
            self.changed.set()

    async def refresh(self) -> None:
        """Read everything. What changes meanwhile has a later revision than this has noted."""
        self.changed.clear()
        [revision] = await self._context.read(int, _SQL["read_revision"])
        # Tokens first: a token that is accepted has the bindings that were made with it.
        found = await self._context.read(ValidToken, _SQL["read_valid_tokens"])
        rules = AccessRules(await self.bindings(after=None, limit=2 * BINDINGS_MAX))
        self.rules, self.tokens = rules, {it.token_id: it for it in found}
        self._revision = revision

    async def bindings(self, *, after: Binding | None, limit: int) -> tuple[Binding, ...]:
        """Return bindings in the order of principal, role and namespace."""
        return await self._context.read(
            Binding,
            _SQL["read_bindings"],
            after_principal="" if after is None else after.principal,
            after_role="" if after is None else after.role,
            after_namespace="" if after is None else after.namespace,
            limit=limit,
        )

    async def add(self, binding: Binding, *, author: str) -> Binding:
        """Add a binding; one that exists stays as it is.

        Raises:
            TooManyBindingsError: There are as many as may be.
        """
        found = await self._context.read(
            Binding, _SQL["add_binding"], binding, author=author, count_max=BINDINGS_MAX
        )
        await self.refresh()
        same = (binding.principal, binding.role, binding.namespace)
        for known in (*found, *self.rules.bindings):
            if (known.principal, known.role, known.namespace) == same:
                return known
        raise access_errors.TooManyBindingsError(BINDINGS_MAX)

    async def remove(self, binding: Binding) -> Binding:
        """Remove a binding. Raises BindingNotFoundError if there is none."""
        found = await self._context.read(Binding, _SQL["remove_binding"], binding)
        await self.refresh()
        if not found:
            raise access_errors.BindingNotFoundError(
                binding.principal, binding.role, binding.namespace
            )
        return found[0]

    async def create_token(
        self, name: str, *, lifetime: dt.timedelta | None, author: str
    ) -> tuple[ApiToken, str]:
        """Create a token; return it with the text that its owner sends.

        Raises:
            TooManyTokensError: There are as many as may be.
        """
        token_id, text, secret_hash = tokens.compose(
            secrets.token_bytes(8), secrets.token_bytes(32)
        )
        found = await self._context.read(
            ApiToken,
            _SQL["add_token"],
            token_id=token_id,
            name=name,
            secret_hash=secret_hash,
            author=author,
            lifetime=lifetime,
            count_max=TOKENS_MAX,
        )
        if not found:
            raise access_errors.TooManyTokensError(TOKENS_MAX)
        await self.refresh()
        return found[0], text

    async def revoke(self, token_id: str) -> ApiToken:
        """Revoke a token. Raises TokenNotFoundError if there is none."""
        found = await self._context.read(ApiToken, _SQL["revoke_token"], token_id=token_id)
        if not found:
            raise access_errors.TokenNotFoundError(token_id)
        await self.refresh()
        return found[0]

    async def list_tokens(self, *, after: str, limit: int) -> tuple[ApiToken, ...]:
        return await self._context.read(ApiToken, _SQL["read_tokens"], after=after, limit=limit)

    def note_used(self, token_id: str) -> None:
        """Remember that a token was used, for `write_used`."""
        self._used.add(token_id)

    async def write_used(self) -> None:
        """Write which tokens were used since the last call, as used now."""
        used, self._used = self._used, set()
        if used:
            await self._context.execute(_SQL["note_used"], token_ids=sorted(used))

    async def delete_ended(self) -> None:
        await self._context.execute(_SQL["delete_ended_tokens"], retention=ENDED_TOKENS_AGE)
