"""What every part of the runtime shares: slots, leases, the due queue, replies, counters.

Imported by all other folders of ``runtime``; imports none of them. Start with ``slots``, which
decides how many steps run at once, then ``replies``, which takes a result to its caller.
"""
