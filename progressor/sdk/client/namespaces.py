"""``client.namespaces``: the namespaces of an engine."""

from collections.abc import Sequence

from progressor.sdk.client.resource import Resource, blocking, iterated, sent
from progressor.sdk.codec.wire import Seconds
from progressor.sdk.transport.connection import BlockingConnection, Connection
from progressor.sdk.transport.exchange import Exchange, Listing, nothing
from progressor.sdk.values.namespaces import (
    NamespaceConfig,
    namespace_from_wire,
    namespace_mask,
    namespace_to_wire,
)
from progressor.v1 import namespace_service_pb2 as pb


class Namespaces(Resource[Connection]):
    """The requests about namespaces; `timeout` is in seconds or a timedelta, None: the client's.

    Raises:
        NamespaceNotFoundError: The namespace does not exist.
    """

    @sent
    def create(
        self, config: NamespaceConfig, *, timeout: Seconds | None = None
    ) -> Exchange[NamespaceConfig]:
        """Create a namespace and return it as stored.

        Raises:
            NamespaceAlreadyExistsError: The name is taken.
        """
        request = pb.CreateNamespaceRequest(namespace=namespace_to_wire(config))
        return Exchange(request, _read, timeout)

    @sent
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
            NamespaceChangedError: It is at another revision than `expected_revision`; 0: any.
        """
        request = pb.UpdateNamespaceRequest(
            namespace=namespace_to_wire(config),
            update_mask=namespace_mask(fields),
            expected_revision=expected_revision,
        )
        return Exchange(request, _read, timeout)

    @sent
    def get(self, name: str, *, timeout: Seconds | None = None) -> Exchange[NamespaceConfig]:
        """Return a namespace."""
        request = pb.GetNamespaceRequest(name=name)
        return Exchange(request, _read, timeout, repeatable=True)

    @iterated
    def list(
        self, *, page_size: int = 100, timeout: Seconds | None = None
    ) -> Listing[NamespaceConfig]:
        """Iterate over the namespaces in the order of their names, page by page.

        `timeout` applies to each page.
        """
        request = pb.ListNamespacesRequest(page_size=page_size)
        return Listing(
            request, lambda message: map(namespace_from_wire, message.namespaces), timeout
        )

    @sent
    def delete(self, name: str, *, timeout: Seconds | None = None) -> Exchange[None]:
        """Delete an empty namespace.

        Raises:
            NamespaceNotEmptyError: The namespace has processes.
        """
        request = pb.DeleteNamespaceRequest(name=name)
        return Exchange(request, nothing, timeout)

    @sent
    def pause(
        self,
        name: str,
        *,
        reason: str,
        author: str = "",
        refuse: bool = False,
        timeout: Seconds | None = None,
    ) -> Exchange[NamespaceConfig]:
        """Pause a namespace until it is resumed, and return it: no step of it begins.

        Running steps end normally. To pause it again replaces the reason, the author and `refuse`.

        Args:
            name: The namespace.
            reason: Why the namespace is paused, shown with the tasks that wait; 1 to 1,024 bytes.
            author: Who pauses it, at most 256 bytes.
            refuse: Refuse Start, Call and Notify with `NamespacePausedError` instead of admitting
                them.
            timeout: As of all requests.
        """
        request = pb.PauseNamespaceRequest(
            name=name, reason=reason, author=author, refuse_requests=refuse
        )
        return Exchange(request, _read, timeout, repeatable=True)

    @sent
    def resume(self, name: str, *, timeout: Seconds | None = None) -> Exchange[NamespaceConfig]:
        """Resume a namespace, and return it; one that is not paused stays as it is."""
        request = pb.ResumeNamespaceRequest(name=name)
        return Exchange(request, _read, timeout, repeatable=True)


def _read(
    message: pb.CreateNamespaceResponse
    | pb.UpdateNamespaceResponse
    | pb.GetNamespaceResponse
    | pb.PauseNamespaceResponse
    | pb.ResumeNamespaceResponse,
) -> NamespaceConfig:
    return namespace_from_wire(message.namespace)


class SyncNamespaces(Resource[BlockingConnection]):
    """`Namespaces` for programs without an event loop: blocking, safe in any thread."""

    create = blocking(Namespaces.create)
    update = blocking(Namespaces.update)
    get = blocking(Namespaces.get)
    list = blocking(Namespaces.list)
    delete = blocking(Namespaces.delete)
    pause = blocking(Namespaces.pause)
    resume = blocking(Namespaces.resume)
