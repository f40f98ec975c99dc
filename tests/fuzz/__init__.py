"""Malformed requests, frames, answers and connections by the hundred thousand: `make fuzz`."""
