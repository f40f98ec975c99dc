"""Gates: read, set and deleted; the tasks that wait at them woken. Start with ``gates``."""
