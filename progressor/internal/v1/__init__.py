"""GENERATED from proto/progressor/internal/v1 by `make proto`; never edited."""
