"""`python -m metaprobe`: the command line, where its script is not on the path."""

from metaprobe.cli import main

if __name__ == "__main__":
    main(prog_name="metaprobe")
