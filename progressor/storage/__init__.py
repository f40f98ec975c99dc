"""Makes decisions durable: the only room that speaks to PostgreSQL.

One method is one round trip; the writes of the hot path are gathered by ``group_commit`` into one
set-based function call per batch (``priv/functions``). Imported by worker, scanner, api's wiring.
Start with ``group_commit``, then ``settlements``; the tables are explained in ``priv/README.md``.
"""
