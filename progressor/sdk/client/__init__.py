"""The clients. Start with ``client``; ``sync_client`` is the blocking one.

Every request is described once, in the modules named ``…calls``.
"""
