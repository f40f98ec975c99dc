"""Schedules: what is started, and when. ``cron`` computes instants in a time zone."""
