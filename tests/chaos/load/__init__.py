"""The load of a chaos run: clients, their connections and the processor that they reach."""
