"""What a command prints: text, tables, JSON documents, errors and exit codes.

Imported by every command. Start with ``output``.
"""
