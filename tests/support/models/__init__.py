"""Models that storage is compared with."""
