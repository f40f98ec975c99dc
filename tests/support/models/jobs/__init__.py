"""The model of jobs, and storage beside it."""
