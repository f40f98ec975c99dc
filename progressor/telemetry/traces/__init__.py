"""Traces: which requests and steps are recorded, and the spans that record them.

Start with ``tracing``. ``span_queue`` is how spans leave the process.
"""
