"""The log: standard logging in, text or JSON lines out, on stderr.

Start with ``setup``.
"""
