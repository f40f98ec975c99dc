"""Who speaks: the attributes that every span and every pushed metric of a replica has."""

from opentelemetry.sdk.resources import Resource

import progressor


def resource_of(*, service_name: str, instance: str) -> Resource:
    """Return the resource of a replica, with what ``OTEL_RESOURCE_ATTRIBUTES`` adds to it.

    Args:
        service_name: ``service.name``.
        instance: ``service.instance.id``, which tells the counters of one replica from another's;
            no two processes may have the same.
    """
    return Resource.create(
        {
            "service.name": service_name,
            "service.instance.id": instance,
            "service.version": progressor.__version__,
        }
    )
