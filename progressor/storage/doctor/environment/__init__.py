"""Checks of what the engine runs on. Start with ``checks``, which has all of them in order."""
