"""The questions, one file each; every one has `NAMES` and ``async def ask(env, pace)``.

`NAMES` are those of the answers it can give; it gives those that the pace wants.
"""
