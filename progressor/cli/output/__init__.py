"""What commands print: text, tables, JSON documents, errors; and their exit codes.

Imported by every command. Start with ``output``.
"""
