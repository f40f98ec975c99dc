"""Commands about schedules. Start with ``schedules``."""
