"""Processes and the requests to them: admitted, read, listed, imported, removed.

Imports every other folder but ``steps`` and ``doctor``. Start with ``admissions``, where a request
becomes a task; ``steps`` has the rest of its path.
"""
