"""Jobs in storage."""
