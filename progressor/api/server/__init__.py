"""The gRPC server: addresses, certificates, sessions, health, drain. Start with ``server``.

Imported by ``engine``; imports every servicer.
"""
