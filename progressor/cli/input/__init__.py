"""What a user typed, checked: options, values, files. ``engines`` is the client they share.

Imported by every command; imports ``output``.
"""
