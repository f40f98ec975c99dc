"""Keeps a replica and its database in order.

``heartbeat`` renews this replica's leases, ``zombies`` collects lost ones, and ``scans`` deletes
old rows and counts waiting tasks. Imported by ``engine``.
"""
