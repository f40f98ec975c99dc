"""Steps: claimed, settled, and what they write meanwhile: messages, memos, extended leases.

Start with ``claims`` and ``settlements``, in that order: they are a task's path through the
database after its admission. Then ``messages``, which delivers what settlements have written.
"""
