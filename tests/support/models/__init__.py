"""Models that storage and clients are compared with."""
