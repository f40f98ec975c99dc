"""What holds for the rows at any moment. ``checks`` runs the statements of the other files."""
