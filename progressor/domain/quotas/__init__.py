"""Quotas of namespaces, and how the replicas share them.

Imports nothing of the other folders. Start with ``quotas``; ``rates`` has the buckets and shares.
"""
