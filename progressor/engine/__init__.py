"""Starts and stops one replica.

``wiring`` builds the parts once connected to PostgreSQL, ``cell`` reaches and leaves one database,
``placement`` knows which database is which cell; ``engine`` runs all as one tree of tasks,
and drains them. Imported by ``cli``. Start with ``engine``.
"""
