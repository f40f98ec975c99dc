"""Access control of requests: who sends one, what it needs, and what its answer shows.

``rules`` is the one table of what each RPC needs. Imported by ``calls`` and ``access``. Start with
``guard``.
"""
