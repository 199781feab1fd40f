"""Reads a model's answer as texts, a number, an option or code. `records.correctness` is the door to all of it."""
