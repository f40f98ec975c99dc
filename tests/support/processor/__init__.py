"""Processors that follow a script, and the streams to them."""
