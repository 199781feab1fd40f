"""Holds what happened: items, calls, runs, labels, and the store that keeps them."""
