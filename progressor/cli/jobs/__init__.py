"""Commands about jobs, and the drawing of their graphs. Start with ``jobs``."""
