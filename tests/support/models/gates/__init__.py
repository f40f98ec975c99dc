"""The model of gates, and storage beside it."""
