"""Commands about processes: start, call, get, why, trace, list, put, remove and the rest."""
