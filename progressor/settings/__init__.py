"""What the configuration is made of: sections, sources, decoding; only ``config`` imports it.

Start with ``sections``, where every key stands; then ``sources`` for who may give its value.
"""
