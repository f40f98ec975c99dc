"""JobService: submit, get, list, watch, retry and cancel jobs. Start with ``servicer``."""
