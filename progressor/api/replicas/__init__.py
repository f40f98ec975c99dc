"""ReplicaService: the replicas of a database, their activity and log levels.

Start with ``servicer``.
"""
