"""Reads what the user typed: options, values and files. ``options`` makes the client."""
