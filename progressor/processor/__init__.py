"""Asks the user's processor to carry out a step, and says what came of it.

Imported by ``runtime``; protobuf objects die in ``codec``. Start with ``client.ask``: it
takes a task with its history and returns an outcome, whatever the other side does. ``failures``
has the table of what a gRPC status means for a step, ``channels`` the ways to the processors,
``connection`` which way a step goes, ``stream`` what goes by frames.
"""
