"""NamespaceService: create, update, get, list and delete namespaces.

Start with ``servicer``; ``fields`` checks each field of a namespace.
"""
