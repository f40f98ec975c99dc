"""Storage as replicas use it, and rows to begin with."""
