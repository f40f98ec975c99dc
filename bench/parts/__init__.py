"""The parts of a measurement, each a program of its own: engine, processor, relay, client.

A part prints one line of JSON when it is ready, then answers each line of JSON on its standard
input with one on its standard output. It exits when its input ends, so that none outlives the
bench.
"""
