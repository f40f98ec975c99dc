"""How a request reaches the engine: channels, sessions, deadlines, retries, errors.

Imported by ``client`` and ``processor``. Start with ``exchange`` (one request as a value), then
``connection``.
"""
