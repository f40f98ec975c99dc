"""Keeps a replica and its database in order.

``heartbeat`` renews this replica's leases, ``zombies`` collects lost ones (guarded against a clock
that jumps by ``clock_guard``), ``retention`` deletes what is old, ``queues`` counts what waits.
Imported by ``engine``.
"""
