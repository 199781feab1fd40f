"""Figures that the papers report of their systems, computed from recorded runs; a file a system."""
