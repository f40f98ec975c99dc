"""GateService: set, get, list and delete gates. Start with ``servicer``."""
