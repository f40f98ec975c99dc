"""ProcessService: start, call, notify, repair, get, list, trace and the rest.

Start with ``servicer``; ``codec`` reads requests and ``answers`` writes responses.
"""
