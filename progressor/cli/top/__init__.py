"""The command ``top``: what an engine does and what waits, refreshed until it is stopped.

``overview`` works out what to show, ``screen`` lays it out.
"""
