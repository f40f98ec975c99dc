"""Starts and stops one replica.

``wiring`` builds the parts once connected to PostgreSQL; ``engine`` runs them as one tree of tasks,
and drains them. Imported by ``cli``. Start with ``engine``.
"""
