"""Namespaces: kept in PostgreSQL, cached by each replica. Start with ``namespaces``."""
