"""Heads for a system's own decisions."""
