"""The questions, one file each; every one has ``async def ask(stage, pace)``.

It returns its measurements: one, or one per variant under a name of its own.
"""
