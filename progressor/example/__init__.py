"""The examples of ``progressor dev``; like a user's program, they import only ``sdk``.

Start with ``order``, a complete processor, then read ``warehouse``, to which it sends messages,
and ``order_scenario``, a client of both.
``rollout`` uses gates, ``nine`` and ``mapreduce`` use jobs, ``nightly`` a schedule: each has a
processor and a scenario. ``scenario`` is what the scenarios share. ``certificates`` makes those of
``progressor dev --tls``.
"""
