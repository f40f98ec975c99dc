"""Reads that any replica answers: the history of a process, lists, and traces."""
