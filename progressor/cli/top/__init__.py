"""The command ``top``: rates, queues and replicas of an engine, refreshed until it is stopped.

``overview`` computes what to show, ``screen`` lays it out.
"""
