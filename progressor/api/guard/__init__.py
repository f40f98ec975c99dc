"""Access control of requests: identifies the caller, checks its rights, hides payloads.

``rules`` is the table of the right that each RPC needs. Imported by ``calls`` and ``access``.
Start with ``guard``.
"""
