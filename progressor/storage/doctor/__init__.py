"""The checks of ``progressor doctor``: invariants of the tables, and the environment.

Imports ``postgres`` and ``namespaces``. Start with ``invariants``, what must hold at any moment;
``environment`` lists the other checks.
"""
