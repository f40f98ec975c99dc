"""Schedules: started when they are due, by whichever replica comes first.

``scan`` finds due schedules; ``runs`` starts what they start and reports it. Imported by
``engine``.
"""
