"""Graphs of jobs."""
