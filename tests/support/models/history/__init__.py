"""Histories of what clients saw, and whether some order explains them."""
