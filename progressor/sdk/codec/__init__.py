"""Conversions between values, payloads and messages. Start with ``codecs``.

Imported by all other folders of ``sdk``.
"""
