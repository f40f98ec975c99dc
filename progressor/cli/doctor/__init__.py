"""The command ``doctor``: checks a database, and says what to do."""
