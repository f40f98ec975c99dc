"""Jobs: read, retried, cancelled and kept going. Start with ``jobs``.

What the steps of leaders and followers do to a job is part of their settlement (``processes``).
"""
