"""Fills a database with millions of processes, tasks, events and timers, within minutes.

`python -m bench.filling` fills a database and prints its sizes; a question uses `load.fill`. The
rows (`plan`) are what the engine would have written, so that all invariants of storage hold. They
are made from templates (`rows`) and loaded by COPY (`load`), in the order of their keys, into
tables without indexes, which are built afterwards. `sizes` reports the size of a process on disk.
"""
