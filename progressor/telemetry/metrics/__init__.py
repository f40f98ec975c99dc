"""Metrics: the instruments of a replica, and how they are exported.

Start with ``registry``, which declares and describes every metric.
"""
