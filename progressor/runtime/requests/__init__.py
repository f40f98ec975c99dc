"""Where requests come in, become tasks, and wait for their replies.

Imported by ``engine``, which hands it to ``api``. One module: ``requests``.
"""
