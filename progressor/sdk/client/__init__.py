"""The clients. Start with ``client``; ``sync_client`` is the blocking one.

Each of the other modules has the requests about one kind of thing, each described once, and the two
classes that send them.
"""
