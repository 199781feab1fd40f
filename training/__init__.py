"""Fit, calibrate, audit, compare and export."""
