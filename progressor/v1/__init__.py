"""GENERATED from proto/progressor/v1 by `make proto`; never edited."""
