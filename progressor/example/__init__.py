"""An order: the example that ``progressor dev`` plays; imports ``sdk`` alone, as users do.

Start with ``order``, the whole processor; then ``scenario``, what a client does with it.
"""
