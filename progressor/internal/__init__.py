"""Messages of the engine and the SDK alone; no contract."""
