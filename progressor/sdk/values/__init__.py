"""What requests take and responses bring, as frozen values, and their form on the wire.

Imported by ``client``, ``processor`` and ``testing``. Start with ``processes``. What only clients
need, as of gates, schedules and replicas, stands with their requests in ``client``.
"""
