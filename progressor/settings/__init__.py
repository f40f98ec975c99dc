"""The configuration: ``sections`` declares every key, ``config`` loads them."""
