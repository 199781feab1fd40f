"""Figures that the papers report about their systems, computed from recorded runs; a file a system."""
