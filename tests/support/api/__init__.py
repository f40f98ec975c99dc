"""The API without an engine: servers with answers in memory, messages and terminals."""
