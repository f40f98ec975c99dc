"""The rules of the engine as pure functions, and their values: no I/O, no clock, no protobuf.

Everyone may import it; it imports only ``errors``. Start with ``processes.settlement`` (what an
outcome does to a task) and ``processes.admission`` (what a request does to a process).

The engine calls some of these rules. PL/pgSQL carries out the others under its locks, and a test
compares it with the function here. SQL files are those of ``priv/functions``.

=======================  =============================  ===========================  ==============
rule                     function                       decided by                   compared by
=======================  =============================  ===========================  ==============
admission of a request   admission.decide               admission/admit_*            1, 2
outcome of an attempt    settlement.settle              runtime; written by          2
                                                        settlement/settle_tasks
next attempt             policy.next_delay              settle; sdk/testing          3
nodes and edges          graph.plan_nodes               runtime; written by          4
                                                        jobs/nodes/add_nodes
state of a node          job.state_before_start         jobs/nodes                   4
overlap, queued runs     schedule.decide                schedules/run_schedules      5, 6
instants and late runs   schedule.Calendar              runtime, api                 7
passing constraints      constraint.waits, rank         gates/settle_gates           8
why a task waits         why.waits                      queries/read_waits           9
words of enums           the enums                      types of PostgreSQL          10
=======================  =============================  ===========================  ==============

 1. ``tests/storage/processes/test_admissions.py``, each cell of the table
 2. ``tests/model/test_storage_model.py``
 3. ``tests/property/test_processes.py``, ``tests/system/sdk/test_rehearsal.py``
 4. ``tests/model/test_jobs_model.py``, ``tests/property/test_job_graphs.py``
 5. ``tests/storage/schedules/test_runs_triggers.py``
 6. ``tests/model/test_schedules_model.py``
 7. ``tests/unit/domain/test_schedules.py``; no SQL takes part
 8. ``tests/model/test_gates_model.py``
 9. ``tests/storage/waits/test_why.py``, ``tests/storage/waits/test_why_gates_model.py``
10. ``tests/storage/postgres/test_schema.py``
"""
