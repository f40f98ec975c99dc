"""Pages of the reference that are written from the code: from the protos, the help, the SDK."""
