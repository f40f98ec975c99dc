"""``client.namespaces``: the namespaces of an engine, for either client."""

from collections.abc import Sequence

from progressor.sdk.codec.wire import Seconds, optional_timedelta
from progressor.sdk.sending.exchange import Exchange, Listing, Page, Service
from progressor.sdk.sending.sending import (
    BlockingResource,
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


class NamespaceRequests:
    """Builds requests; `timeout` is seconds or a timedelta, None the client's."""

    def create(
        self, config: NamespaceConfig, *, timeout: Seconds | None = None
    ) -> Exchange[NamespaceConfig]:
        """Create a namespace and return it as the engine keeps it.

        Raises:
            NamespaceAlreadyExistsError: The name is taken.
        """
        return Exchange(
            rpc="CreateNamespace",
            request=pb.CreateNamespaceRequest(namespace=namespace_to_wire(config)),
            parse=lambda message: namespace_from_wire(message.namespace),
            repeatable=False,
            timeout=optional_timedelta(timeout),
            service=Service.NAMESPACES,
        )

    def update(
        self,
        config: NamespaceConfig,
        *,
        fields: Sequence[str] | None = None,
        expected_revision: int = 0,
        timeout: Seconds | None = None,
    ) -> Exchange[NamespaceConfig]:
        """Change the named `fields` of a namespace, None: all, and return it.

        To change what is there: ``replace(await client.namespaces.get(name), step_timeout=...)``,
        with its revision as `expected_revision`.

        Raises:
            NamespaceChangedError: It is no longer at `expected_revision`; 0 takes any.
        """
        return Exchange(
            rpc="UpdateNamespace",
            request=pb.UpdateNamespaceRequest(
                namespace=namespace_to_wire(config),
                update_mask=namespace_mask(fields),
                expected_revision=expected_revision,
            ),
            parse=lambda message: namespace_from_wire(message.namespace),
            repeatable=False,
            timeout=optional_timedelta(timeout),
            service=Service.NAMESPACES,
        )

    def get(self, name: str, *, timeout: Seconds | None = None) -> Exchange[NamespaceConfig]:
        """Return a namespace.

        Raises:
            NamespaceNotFoundError: There is none of this name.
        """
        return Exchange(
            rpc="GetNamespace",
            request=pb.GetNamespaceRequest(name=name),
            parse=lambda message: namespace_from_wire(message.namespace),
            repeatable=True,
            timeout=optional_timedelta(timeout),
            service=Service.NAMESPACES,
        )

    def list(
        self, *, page_size: int = 100, timeout: Seconds | None = None
    ) -> Listing[NamespaceConfig]:
        """Go through the namespaces in the order of their names, page after page."""

        def page(token: str) -> Exchange[Page[NamespaceConfig]]:
            return Exchange(
                rpc="ListNamespaces",
                request=pb.ListNamespacesRequest(page_size=page_size, page_token=token),
                parse=lambda message: Page(
                    items=tuple(namespace_from_wire(it) for it in message.namespaces),
                    next_page_token=message.next_page_token,
                ),
                repeatable=True,
                timeout=optional_timedelta(timeout),
                service=Service.NAMESPACES,
            )

        return Listing(page=page)

    def delete(self, name: str, *, timeout: Seconds | None = None) -> Exchange[None]:
        """Delete an empty namespace.

        Raises:
            NamespaceNotEmptyError: It still has processes.
        """
        return Exchange(
            rpc="DeleteNamespace",
            request=pb.DeleteNamespaceRequest(name=name),
            parse=lambda _message: None,
            repeatable=False,
            timeout=optional_timedelta(timeout),
            service=Service.NAMESPACES,
        )


class Namespaces(Resource[NamespaceRequests]):
    """What a program asks of namespaces; `NamespaceRequests` explains each method's arguments."""

    create = sent(NamespaceRequests.create)
    update = sent(NamespaceRequests.update)
    get = sent(NamespaceRequests.get)
    list = iterated(NamespaceRequests.list)
    delete = sent(NamespaceRequests.delete)


class SyncNamespaces(BlockingResource[NamespaceRequests]):
    """`Namespaces` for programs without an event loop: blocking, and safe in any thread."""

    create = blocking_sent(NamespaceRequests.create)
    update = blocking_sent(NamespaceRequests.update)
    get = blocking_sent(NamespaceRequests.get)
    list = blocking_iterated(NamespaceRequests.list)
    delete = blocking_sent(NamespaceRequests.delete)
