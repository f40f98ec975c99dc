"""The processors of a job rehearsal, and the configurations of their namespaces."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from progressor.sdk.processor.processor import Processor
from progressor.sdk.testing.rehearsal import Rehearsal
from progressor.sdk.testing.simulated_process import Observer
from progressor.sdk.values.namespaces import NamespaceConfig, policy_from_wire
from progressor.v1 import nodes_pb2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """Processors and configurations by namespace, for a job and the jobs within it."""

    processors: Mapping[str, Processor[Any]]
    configs: Mapping[str, NamespaceConfig]

    def leader(
        self, processor: Processor[Any], process_id: str, observer: Observer
    ) -> Rehearsal[Any]:
        """Return the process of a leader, not started yet."""
        config = self._config_of(processor.name)
        return Rehearsal(processor, process_id, config=config, observer=observer)

    def follower(
        self, spec: nodes_pb2.NodeSpec, namespace: str, process_id: str, observer: Observer
    ) -> Rehearsal[Any]:
        """Return the process of a node, not started yet; the node's own retry policy applies.

        Raises:
            ValueError: The namespace has no processor.
        """
        processor = self.processors.get(namespace)
        if processor is None:
            message = f"no processor for node {spec.name!r}: use `complete` or `fail`"
            raise ValueError(message)
        config = self._config_of(namespace)
        if spec.HasField("retry_policy"):
            policy = policy_from_wire(spec.retry_policy)
            config = dataclasses.replace(config, retry_policy=policy, retry_policies={})
        return Rehearsal(processor, process_id, config=config, observer=observer)

    def _config_of(self, namespace: str) -> NamespaceConfig:
        return self.configs.get(namespace) or NamespaceConfig(name=namespace, processor_targets=())
