"""Sessions: many requests on one stream, answered in any order, by the same servicers.

``session`` is one of them, ``sessions`` all of a replica. Imported by ``server``.
"""
