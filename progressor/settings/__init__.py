"""The configuration: its sections, its sources, and how values are decoded.

Start with ``sections``, which declares every key, then ``config``, which loads them.
"""
