"""Work that goes on while something is broken: what is left of the rate, and when it is back.

`python -m bench.disturbed` sets up an environment (`env`) of a PostgreSQL, two replicas and a
processor, each in a process of its own, and callers who repeat failed requests (`callers`). It
measures a calm window, breaks something (`faults`), measures a window after it (`windows`), and
compares what was acknowledged with the database (`checks`).
`cells` says what is broken and by which bars it is judged;
`zombies` and `resuming` follow single processes instead of a rate.
"""
