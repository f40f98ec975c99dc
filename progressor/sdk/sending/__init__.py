"""How a request reaches the engine: channels, sessions, deadlines, safe repeats, errors.

Imported by ``client`` and ``processor``. Start with ``exchange`` (one request as a value), then
``connection``.
"""
