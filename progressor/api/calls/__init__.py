"""What surrounds every method: interceptors, deadlines, validation, errors, traces, page tokens.

Imported by all other folders of ``api``; imports none of them. Start with ``interceptors``.
"""
