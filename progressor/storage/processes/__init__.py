"""Processes and their tasks: admitted, claimed, settled, read, imported, removed.

Imports every other folder but ``doctor``. Start with ``admissions``, ``claims`` and
``settlements``, in that order: they are a task's path through the database.
"""
