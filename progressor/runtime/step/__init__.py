"""One task from claimed to settled: the heart of the engine.

Imported by ``requests``, ``timers`` and ``upkeep``. Start with ``step``; ``history_cache`` keeps
the histories of recently active processes in memory.
"""
