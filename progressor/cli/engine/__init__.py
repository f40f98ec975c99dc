"""Commands that run an engine or ask about one: serve, migrate, config, health, replicas.

``supervisor`` runs several replica processes behind one port; ``hosting`` runs an engine in this
one.
"""
