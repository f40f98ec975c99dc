"""PostgreSQL itself: pools, statements, functions, migrations, arrays, errors, retries.

Imported by all other folders of ``storage``; imports none of them. Start with ``pools``, which
turns the driver's errors into ours.
"""
