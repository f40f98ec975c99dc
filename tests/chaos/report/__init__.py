"""What a chaos run reports: rates around each fault, totals and the verdict."""
