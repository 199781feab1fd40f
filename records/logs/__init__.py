"""Logs of other programs, read as the lines that `metaprobe import` takes: a file a format, `detect.py` lists them."""
