"""The wire: what clients and operators ask, made into domain requests, and what they get back.

Imported by ``engine`` alone. It decides nothing: codecs read and write messages, servicers call the
collaborators named in ``calls/ports.py``, ``calls/status.py`` turns errors into gRPC's. Start with
``processes/servicer.py``; ``server`` and ``calls`` surround every servicer, and ``sessions`` is the
other way in to the same methods.
"""
