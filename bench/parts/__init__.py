"""The parts of a measurement, each a program of its own: engine, processor, relay, client.

A part prints one line of JSON when it is ready, then answers each line of JSON on its standard
input by one on its standard output, and ends with its input: none outlives the bench.
"""
