"""The shapes of rows that features share, and of the arrays that batches send.

Imported by the features and by ``commit``; imports ``postgres``. It is the floor that keeps the
features from importing each other. Start with ``tasks``.
"""
