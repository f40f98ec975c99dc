"""What the doctor finds in the database of a test."""
