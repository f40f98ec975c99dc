"""Commands about gates."""
