"""Between protobuf and values, for both sides: fields, enums, policies, nodes, frames, streams.

Imported by ``api``, ``processor`` and ``sdk``; imports ``domain`` and ``errors``. Start with
``fields``.
"""
