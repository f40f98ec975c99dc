"""Applies the effects of writes, and keeps what this replica has learned from them.

A write returns its effects as a value. ``dispatcher`` hands them to the queues in this folder and
to the callers in ``replies``. Imported by every folder that writes; imports ``core``.
"""
