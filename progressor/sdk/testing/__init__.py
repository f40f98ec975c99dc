"""Handlers and whole jobs, rehearsed in memory: no engine, no PostgreSQL, no waiting.

A process, from its start to its end, time passing when the test says so::

    order = Rehearsal(orders)
    await order.start(Order(item="tea", price=42))
    await order.advance(0.4)
    assert order.events == [{"placed": "tea"}, {"reminded": 42}]

A job, its nodes ending in the order that the test chooses::

    job = JobRehearsal(graph)
    assert job.running == ("build",)
    assert await job.complete("build") == ("test-1", "test-2")
    await job.fail("test-1")
    assert job.states["deploy"] is NodeState.SKIPPED

Start reading at ``rehearsal.py`` or at ``job.py``; ``standing.py`` has the rules of graphs, and
``carried_job.py`` those of jobs, and of jobs within jobs.
"""

from progressor.sdk.testing.job import JobRehearsal
from progressor.sdk.testing.rehearsal import DueTimer, Rehearsal, TakenStep

__all__ = ("DueTimer", "JobRehearsal", "Rehearsal", "TakenStep")
