"""The pages about the engine itself: the overview, namespaces, replicas and the audit."""
