"""Metrics: the instruments of a replica, and how they are exported.

Start with ``registry``, which has every instrument; ``../names.py`` describes each one.
"""
