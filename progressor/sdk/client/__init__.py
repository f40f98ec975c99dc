"""The clients. Start with ``client``; ``sync_client`` is the blocking one.

Each other module describes the requests of one service, once, and has the two classes that send
them.
"""
