"""One task from claimed to settled. Start with ``step``.

``histories`` reads the events that go with a task, ``job_steps`` handles the graphs of jobs.
Imported by ``engine``.
"""
