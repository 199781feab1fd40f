"""Runs the command line as `python -m metaprobe`, for when the `metaprobe` script is not on the path."""

from metaprobe.cli import main

if __name__ == "__main__":
    main(prog_name="metaprobe")
