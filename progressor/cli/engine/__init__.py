"""Commands that run an engine, here by ``hosting``, or ask about one."""
