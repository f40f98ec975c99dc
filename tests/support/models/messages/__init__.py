"""Storage with messages of steps, in memory, and beside the real one."""
