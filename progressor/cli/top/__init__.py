"""What people watch: ``top`` in a terminal, and the console in a browser."""
