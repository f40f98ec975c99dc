"""Replicas: heartbeats, status, leases, and how much work waits for all of them.

Start with ``replicas``; ``heartbeats`` has its own connection, outside the pools.
"""
