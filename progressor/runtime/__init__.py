"""Runs tasks: from a lease, through the processor, to a settlement and a reply.

Imported by ``engine`` alone; imports ``processor``, ``storage``, ``telemetry`` and ``domain``. A
request enters at ``requests``, a due task at ``claims``; both end in ``step``. What writes report
besides their results goes to ``effects``. ``upkeep`` renews leases and collects lost ones. Start
with ``step/step.py``: one task from claimed to settled.
"""
