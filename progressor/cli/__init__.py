"""The command ``progressor``: parses, asks, prints; decides nothing about processes.

Nobody imports this room. Start with ``main``: which commands there are, and how all of them end.
"""
