"""Chaos: several replicas under load, and a fault every few seconds, judged at the end.

`python -m tests.chaos --minutes N --seed S`, or `make chaos`. ``plan.py`` decides what will break,
``scene.py`` holds what can break, ``faults.py`` breaks it. With ``--standby`` PostgreSQL is a pair
of servers (``tests.support.postgres.pair``). In ``load/``, ``clients.py`` send
requests on ``connections.py`` to the processes of ``process_pool.py``; ``processor.py`` answers and
keeps a ``journal.py``; ``job_clients.py`` submit jobs and follow them (``jobs.py``), ``actors/``
are processes that do many things at once. ``bulks.py`` has processes that break retried by bulk
operations. ``judges.py`` find out whether anything was lost,
``history.py`` from what clients sent and saw, and ``linear.py`` whether an order explains it.
``report.py`` shows what it cost. Start reading at ``__main__.py``.
"""
