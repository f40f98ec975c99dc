"""The rules, and the values that they work on. No await, no clock, no I/O, no protobuf.

Everyone may import it; it imports only ``errors``. Start with ``settlement`` (what an outcome does
to a task and its process) and ``admission`` (what a request meets). The tables of both stand in
their module docstrings.
"""
