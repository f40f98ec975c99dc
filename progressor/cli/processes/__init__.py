"""Commands about processes: start, call, get, why, list, failures, put, remove and the rest."""
