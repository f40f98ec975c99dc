"""Jobs: what a step of a leader or follower needs, and the work that no settlement does.

``graphs`` serves the steps; ``upkeep_queue`` holds the jobs that need attention and ``upkeep``
works through them. Imported by ``step`` and ``engine``.
"""
