"""Metrics, traces and spans as their receivers see them."""
