"""A durable process engine on PostgreSQL, called over gRPC.

The data flow is the table of contents::

    client -> api -> storage -> runtime -> processor -> runtime -> storage -> api -> client

    domain   the rules: pure functions and values, with no I/O
    wire     between protobuf and values
    engine   starts and stops all of it

Read in this order: ``domain`` (the rules), ``runtime/step/step.py`` (one task from claimed to
settled), ``storage`` with ``priv/README.md`` (how it becomes durable), ``api``, then ``engine``.
Users of the engine import ``progressor.sdk``.
"""

__version__ = "0.1.0"
