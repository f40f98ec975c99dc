"""Carries tasks: from a lease, through the user's processor, to a settlement and an answer.

Imported by api's wiring and scanner; imports processor, storage, telemetry, domain. Start with
``step`` (one task from claimed to settled: the heart), then ``intake`` (where requests come in),
``workers`` (how many at once), ``replies`` (how answers find their callers).
"""
