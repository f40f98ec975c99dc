"""Pages about processes: the list, one process, and what has broken them.

Their filter in an address is in ``visits.filters``; the pages of bulk operations share it.
"""
