"""A database with a past: processes, their tasks, events and timers, by the million, in minutes.

`python -m bench.filling` fills one and tells its sizes; `load.fill` is the same for a question.
What is put in (`plan`) is what the engine would have written, so that all invariants of storage
hold; how (`load`): COPY of rows made from templates (`rows`), in the order of their keys, into
tables without indexes, which are built after. `sizes` says what a process takes on disk.
"""
