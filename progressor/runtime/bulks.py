"""Starts and stops bulk operations; their steps are in ``step/bulk_steps.py``."""

import contextlib
import dataclasses
from collections.abc import Mapping

from progressor import errors
from progressor.domain.views.bulk import NAMESPACE, OPERATIONS, BulkOperation, BulkRequest
from progressor.runtime.effects.dispatcher import EffectDispatcher
from progressor.storage.jobs.bulks import Bulks
from progressor.storage.namespaces.namespaces import Namespaces


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BulkControl:
    bulks: Bulks
    namespaces: Namespaces
    effects: EffectDispatcher

    async def start(
        self, request: BulkRequest, trace_context: Mapping[str, str]
    ) -> tuple[BulkOperation, bool]:
        """Start an operation; return it, and whether the same request had started it before.

        Raises:
            OperationAlreadyExistsError: Its id is that of another operation.
        """
        try:
            await self.namespaces.lookup(OPERATIONS)
        except errors.NamespaceNotFoundError:
            # Another replica may be faster.
            with contextlib.suppress(errors.NamespaceAlreadyExistsError):
                await self.namespaces.create(NAMESPACE)
        is_known, effects = await self.bulks.start(request, trace_context)
        self.effects.apply(effects)
        return await self.bulks.get(request.operation_id), is_known

    async def stop(self, operation_id: str, reason: str) -> BulkOperation:
        """Stop an operation within a chunk, unless it has ended."""
        return await self.bulks.stop(operation_id, reason)
