"""What steps write besides their outcomes: messages to other processes, memos, extended leases.

Start with ``messages``, which delivers what settlements have written, then ``step_writes``.
"""
