"""The gRPC server: addresses and certificates, health, reflection, drain. Start with ``server``.

Imported by ``engine``; imports every servicer.
"""
