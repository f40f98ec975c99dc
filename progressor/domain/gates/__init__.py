"""Gates, and the constraints that a task must satisfy before it may run."""
