"""``client.namespaces``: the namespaces of an engine."""

from collections.abc import Sequence

from progressor.sdk.codec.wire import Seconds
from progressor.sdk.transport.exchange import Exchange, Listing, nothing
from progressor.sdk.transport.methods import (
    BlockingResource,
    RequestBuilder,
    Resource,
    blocking_iterated,
    blocking_sent,
    iterated,
    sent,
)
from progressor.sdk.values.namespaces import (
    NamespaceConfig,
    namespace_from_wire,
    namespace_mask,
    namespace_to_wire,
)
from progressor.v1 import namespace_service_pb2 as pb


class NamespaceRequests(RequestBuilder):
    """Builds requests; `timeout` is in seconds or a timedelta, None: the client's."""

    def create(
        self, config: NamespaceConfig, *, timeout: Seconds | None = None
    ) -> Exchange[NamespaceConfig]:
        """Create a namespace and return it as stored.

        Raises:
            NamespaceAlreadyExistsError: The name is taken.
        """
        return Exchange(
            pb.CreateNamespaceRequest(namespace=namespace_to_wire(config)),
            _read,
            timeout,
        )

    def update(
        self,
        config: NamespaceConfig,
        *,
        fields: Sequence[str] | None = None,
        expected_revision: int = 0,
        timeout: Seconds | None = None,
    ) -> Exchange[NamespaceConfig]:
        """Update the named `fields` of a namespace, None: all, and return it as stored.

        To change one field of an existing namespace: ``replace(await
        client.namespaces.get(name), step_timeout=...)``, with its revision as `expected_revision`.

        Raises:
            NamespaceNotFoundError: The namespace does not exist.
            NamespaceChangedError: It is at another revision than `expected_revision`; 0: any.
        """
        return Exchange(
            pb.UpdateNamespaceRequest(
                namespace=namespace_to_wire(config),
                update_mask=namespace_mask(fields),
                expected_revision=expected_revision,
            ),
            _read,
            timeout,
        )

    def get(self, name: str, *, timeout: Seconds | None = None) -> Exchange[NamespaceConfig]:
        """Return a namespace.

        Raises:
            NamespaceNotFoundError: The namespace does not exist.
        """
        return Exchange(
            pb.GetNamespaceRequest(name=name),
            _read,
            timeout,
            repeatable=True,
        )

    def list(
        self, *, page_size: int = 100, timeout: Seconds | None = None
    ) -> Listing[NamespaceConfig]:
        """Iterate over the namespaces in the order of their names, page by page.

        `timeout` applies to each page.
        """
        return Listing(
            pb.ListNamespacesRequest(page_size=page_size),
            lambda message: map(namespace_from_wire, message.namespaces),
            timeout,
        )

    def delete(self, name: str, *, timeout: Seconds | None = None) -> Exchange[None]:
        """Delete an empty namespace.

        Raises:
            NamespaceNotEmptyError: The namespace has processes.
        """
        return Exchange(
            pb.DeleteNamespaceRequest(name=name),
            nothing,
            timeout,
        )


def _read(
    message: pb.CreateNamespaceResponse | pb.UpdateNamespaceResponse | pb.GetNamespaceResponse,
) -> NamespaceConfig:
    return namespace_from_wire(message.namespace)


class Namespaces(Resource[NamespaceRequests]):
    """The requests about namespaces; `NamespaceRequests` documents the arguments."""

    create = sent(NamespaceRequests.create)
    update = sent(NamespaceRequests.update)
    get = sent(NamespaceRequests.get)
    list = iterated(NamespaceRequests.list)
    delete = sent(NamespaceRequests.delete)


class SyncNamespaces(BlockingResource[NamespaceRequests]):
    """`Namespaces` for programs without an event loop: blocking, safe in any thread."""

    create = blocking_sent(NamespaceRequests.create)
    update = blocking_sent(NamespaceRequests.update)
    get = blocking_sent(NamespaceRequests.get)
    list = blocking_iterated(NamespaceRequests.list)
    delete = blocking_sent(NamespaceRequests.delete)
