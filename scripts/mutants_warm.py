"""Runs tests for mutants.py in forks of one process that has imported the libraries.

A line of JSON in is one run; two lines out are its process and, at its end, its exit code.

What is changed between two runs must not have been imported here: metaprobe and its tests never are.
"""

import json
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

LIBRARIES = (
    "numpy scipy.stats scipy.optimize scipy.special sklearn.linear_model sklearn.metrics sklearn.model_selection "
    "lightgbm onnx onnxruntime pyarrow.parquet pandas torch transformers datasets hypothesis pytest xdist aiohttp "
    "openai click rich httpx starlette uvicorn skl2onnx onnxmltools"
)


def fork(arguments: list[str], tree: str, said: str, seconds: int) -> int:
    """Returns the process that runs pytest on the arguments in a folder, its output in a file, its own group.

    It ends after so many seconds of the processor: a busy machine ends no test.
    """
    child = os.fork()
    if child:
        return child
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    os.setpgid(0, 0)  # not a session of its own: it keeps the priority of whoever began the run
    out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.chdir(tree)
    sys.path[:] = [
        "",
        str(Path(tree) / "src"),
        *(path for path in sys.path if Path(path).name not in ("src", "scripts")),
    ]
    sys.argv = ["pytest", *arguments]
    import pytest

    code = int(pytest.main(arguments))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    for name in LIBRARIES.split():
        with suppress(ImportError):
            __import__(name)
    if wrong := [name for name in sys.modules if name.partition(".")[0] == "metaprobe"]:
        sys.exit(f"imported before any mutant was planted: {wrong}")
    for line in sys.stdin:
        child = fork(**json.loads(line))
        sys.stdout.write(f"{child}\n")
        sys.stdout.flush()
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}\n")
        sys.stdout.flush()
