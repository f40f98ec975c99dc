"""Load during a fault: the rate that remains, and the time to recover.

`python -m bench.disturbed` sets up an environment (`env`) of a PostgreSQL, two replicas and a
processor, each in a process of its own, and callers that repeat failed requests (`callers`). It
measures a window without a fault, injects a fault (`faults`), measures a window after it
(`windows`), and compares the acknowledged requests with the database (`checks`). `cells` defines
the faults and the bars by which they are judged; `zombies` and `resuming` follow single processes
instead of a rate.
"""
