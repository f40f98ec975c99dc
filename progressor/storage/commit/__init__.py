"""Group commit: what is waiting becomes one statement, one round trip, one commit.

Imported by ``processes``; imports ``postgres``. Start with ``group_commit``; ``shard`` is the
queue of one kind of write, ``fair_queue`` its order, ``group_read`` the same idea for reads.
"""
