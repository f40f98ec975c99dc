"""Brings work whose time has come, and collects what was lost.

``timers`` claims at the due time what this replica knows of; ``backlog`` what found no free
worker; ``due`` is the safety net under both; ``zombies`` collects lost leases; ``retention``
deletes. The last three are repeated by ``loop``. Imported by app; imports worker and storage.
"""
