"""Logs: standard logging to stderr, as human-readable lines or as JSON.

Start with ``setup``.
"""
