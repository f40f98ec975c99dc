"""The command ``progressor``: parses arguments, sends requests, prints answers.

No other room imports this one. Start with ``main``: the commands, and how each of them ends.
"""
