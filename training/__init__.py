"""Collect runs, build data sets, fit, calibrate, export."""
