"""Asks the user's processor to run a step, and returns the outcome.

Imported by ``runtime``; protobuf objects stay in ``codec``. Start with ``client.ask``: it takes a
task with its history and returns an outcome, whatever the processor does. ``failures`` maps a gRPC
status to a failure of the step, ``channels`` keeps a connection per target, and ``stream``
multiplexes steps on one stream.
"""
