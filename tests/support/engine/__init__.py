"""Whole engines: in this process or in one of their own, and what a test asks of them."""
