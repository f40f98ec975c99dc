"""Sets the capacities of gates."""

import dataclasses

from progressor.domain.gates.gate import Gate
from progressor.runtime.effects.dispatcher import EffectDispatcher
from progressor.storage.gates.gates import Gates


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GateCapacities:
    """Sets capacities and applies what comes of it."""

    gates: Gates
    effects: EffectDispatcher

    async def set(
        self, namespace: str, gate: str, *, capacity: int, expected_revision: int
    ) -> Gate:
        """Set a capacity and return the gate; raises as `Gates.set` in storage."""
        effects = await self.gates.set(
            namespace, gate, capacity=capacity, expected_revision=expected_revision
        )
        self.effects.apply(effects)
        return await self.gates.read(namespace, gate)
