"""What every part of the runtime shares: its context, measures, leases and slots.

Imported by all other parts of ``runtime``; imports none of them. Start with ``slots``, which
decides how many steps run at once.
"""
