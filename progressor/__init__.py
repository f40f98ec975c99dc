"""A durable process engine on PostgreSQL, called over gRPC.

The data flow is the table of contents::

    Client -> api -> storage -> worker -> processor -> worker -> storage -> api -> Client
                        ^          ^                     |
                     scanner ------+                  domain   (decides; touches nothing)

Read in this order: ``domain`` (every rule), ``worker/step.py`` (one task from claimed to settled),
``storage`` with ``priv/README.md`` (how it becomes durable), ``api``, ``scanner``, ``app.py``.
Users of the engine import ``progressor.sdk``.
"""

__version__ = "0.1.0"
