"""Jobs: a leader, and the graph of nodes that it owns. Start with ``job``, then ``graph``."""
