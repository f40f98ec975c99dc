"""Commands about namespaces: one at a time, or many from a file."""
