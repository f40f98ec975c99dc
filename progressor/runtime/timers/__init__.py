"""Claims tasks when they are due.

``timers`` claims what this replica knows will be due; ``backlog`` claims what was due while every
slot was taken; ``due`` is the safety net that finds what no replica has claimed. ``places``
reserves slots before a claim. Imported by ``engine``.
"""
