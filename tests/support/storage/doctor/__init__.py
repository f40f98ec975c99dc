"""What the doctor finds, and what breaks each invariant."""
