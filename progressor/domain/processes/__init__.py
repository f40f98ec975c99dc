"""Processes and tasks: what a request meets, and what an outcome does.

Start with ``settlement`` and ``admission``: each has its table in its docstring.
"""
