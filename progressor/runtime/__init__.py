"""Runs tasks: from a lease, through the processor, to a settlement and a reply.

Imported by ``engine`` alone; imports ``processor``, ``storage``, ``telemetry`` and ``domain``. A
request enters at ``requests``; a task whose time has come enters at ``timers``; both end in
``step``. ``upkeep`` keeps leases alive and takes back the ones that were lost. Start with
``step/step.py``: one task from claimed to settled.
"""
