"""Schedules and their runs.

``schedules`` reads and sets them; ``runs`` starts what they start, each instant once.
"""
