"""What people see: processes, traces, what waits and why, replicas and their activity."""
