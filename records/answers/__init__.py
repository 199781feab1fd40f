"""Reads a model's answer as text, number, option or code. Other rooms use it through `records.correctness`."""
