"""PostgreSQL itself: pools, statements, functions, migrations, errors, retries.

Imported by the features and by ``commit``; imports ``rows``. Start with ``pools``, which turns the
driver's errors into ours, and ``context``, by which features call functions and read statements.
"""
