"""Tests of processors and jobs in memory: no engine, no PostgreSQL, no waiting.

A process, from its start to its end; the test moves the clock::

    order = Rehearsal(orders)
    await order.start(Order(item="tea", price=42))
    await order.advance(0.4)
    assert order.events == [{"placed": "tea"}, {"reminded": 42}]

A job, whose nodes end in the order that the test chooses::

    job = JobRehearsal(graph)
    assert job.running == ("build",)
    assert await job.complete("build") == ("test-1", "test-2")
    await job.fail("test-1")
    assert job.states["deploy"] is NodeState.SKIPPED

A process from production, and the code that is to be deployed::

    order = Rehearsal.from_snapshot(orders, await client.get("order-1"))
    await order.call("milk")

Start reading at ``rehearsal.py`` or at ``job_rehearsal.py``; ``graph_state.py`` has the rules of
graphs, ``snapshots.py`` reads stored processes.
"""

from progressor.sdk.testing.job_rehearsal import JobRehearsal
from progressor.sdk.testing.records import TakenStep
from progressor.sdk.testing.rehearsal import Rehearsal
from progressor.sdk.testing.snapshots import upgraded_states
from progressor.sdk.testing.timers import DueTimer

__all__ = ("DueTimer", "JobRehearsal", "Rehearsal", "TakenStep", "upgraded_states")
