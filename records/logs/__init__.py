"""Reads logs of other programs as the lines that `metaprobe import` takes: one file for each format."""
