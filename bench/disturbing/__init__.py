"""Work that goes on while something is broken: what is left of the rate, and when it is back.

`python -m bench.disturbed` sets a scene (`scene`): a PostgreSQL, two replicas, a processor, each in
a process of its own, and callers who insist (`callers`). It measures a calm window, breaks
something (`faults`), measures a window after it (`windows`), and holds what was acknowledged
against the database (`checks`). `cells` says what is broken and by which bars it is judged;
`zombies` and `resuming` follow single processes instead of a rate.
"""
