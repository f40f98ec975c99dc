"""Processors: handlers, the step they are given, and the server that runs them.

Start with ``processor``, then ``step``.
"""
