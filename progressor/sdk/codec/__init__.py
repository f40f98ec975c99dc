"""How values become payloads and messages, and come back. Start with ``codecs``.

Imported by all other folders of ``sdk``.
"""
