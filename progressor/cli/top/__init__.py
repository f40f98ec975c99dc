"""The command ``top``: ``overview`` computes what to show, ``screen`` lays it out."""
