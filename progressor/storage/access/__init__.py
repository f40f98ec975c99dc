"""Bindings and API tokens, as PostgreSQL keeps them. Start with ``access``."""
