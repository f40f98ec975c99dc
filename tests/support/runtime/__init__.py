"""The runtime over collaborators in memory, in virtual time."""
