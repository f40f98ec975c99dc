"""ScheduleService: create, change, pause, trigger and backfill schedules.

Start with ``servicer``; ``spec_codec`` reads and writes what a schedule does, and when.
"""
