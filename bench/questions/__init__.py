"""The questions, one per file; each has `NAMES` and ``async def ask(env, pace)``.

`NAMES` are the names of its possible answers; it gives those that the pace selects.
"""
