"""What an operator sees of the engine: logs, metrics, traces, and the names of all of them."""
