"""The wire: what clients and operators ask, made into domain requests, and what they get back.

Imported by ``engine`` alone. Servicers read messages, call what ``calls/servicer.py`` names, and
write messages; ``calls/status.py`` turns errors into gRPC's. Start with ``processes/servicer.py``;
``server`` and ``calls`` surround every servicer, and ``sessions`` is the other way in.
"""
