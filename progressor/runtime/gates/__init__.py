"""Wakes the tasks that wait at gates, and sends holders back when a capacity is lowered.

``wake_ups`` acts on what statements report; ``scan`` is the safety net under it. Imported by
``requests``, ``timers``, ``schedules`` and ``engine``.
"""
