"""The attributes of every span and every pushed metric of a replica."""

from opentelemetry.sdk.resources import Resource

import progressor


def resource_of(*, service_name: str, instance: str) -> Resource:
    """Return the resource of a replica, with what ``OTEL_RESOURCE_ATTRIBUTES`` adds to it.

    Args:
        service_name: ``service.name``.
        instance: ``service.instance.id``, which distinguishes the counters of replicas; unique to
            each process.
    """
    return Resource.create(
        {
            "service.name": service_name,
            "service.instance.id": instance,
            "service.version": progressor.__version__,
        }
    )
