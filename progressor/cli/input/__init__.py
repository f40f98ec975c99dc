"""Reads what the user typed: options, values and files. ``engines`` makes the client.

Imported by every command; imports ``output``.
"""
