"""Runs a short function against assertions in a process of its own, with limits.

The limits are for accidents: an endless loop, a list that grows forever, a stray `open(..., "w")`. They are no security
boundary, because malicious code can get around them. Run the answers of a model that you do not trust in a container or
a virtual machine.

The code runs under `python -I -S`, with an empty environment, an empty temporary folder as working folder, and no
input. Its output is discarded. Wall-clock time, processor time and address space are limited, and files may have 0
bytes. No further process may be started, if the system can enforce this (not for root). An audit hook refuses writing,
deleting, starting processes, signals and sockets. The code passes only if a random token, which it does not know, comes
back after the last assertion. So printing or leaving early cannot pass. Without Python's `resource` module (Windows),
only the time limit and the audit hook apply.
"""

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CHILD = Path(__file__).with_name("sandbox_child.py")


@dataclass(frozen=True, slots=True)
class Trial:
    """Result of running one candidate's code."""

    passed: bool
    reason: str
    """Empty if the code passed; else the first fault, in one line."""


def run_assertions(
    code: str, assertions: Sequence[str], *, timeout_s: float = 2.0, memory_bytes: int = 512 * 2**20
) -> Trial:
    """Runs `code` and returns whether all assertions hold. Takes about 30 ms, or `timeout_s` if the code does not end.

    Args:
        code: the code.
        assertions: assertions that must hold after the code has run.
        timeout_s: wall-clock limit in seconds.
        memory_bytes: limit of the address space in bytes.
    """
    token = secrets.token_hex(16)
    parts = [token, str(int(timeout_s) + 1), str(memory_bytes), code, *assertions]
    if any("\0" in part for part in parts):
        return Trial(False, "a NUL character is not Python")
    with (
        tempfile.TemporaryDirectory(prefix="metaprobe-") as folder,
        subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", str(CHILD)],
            cwd=folder,
            env={},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process,
    ):
        try:
            report, _ = process.communicate("\0".join(parts).encode(errors="replace"), timeout=timeout_s)
        except subprocess.TimeoutExpired:
            _kill(process)
            return Trial(False, f"no end within {timeout_s:g} s")
        except BaseException:  # Ctrl-C must not leave it running
            _kill(process)
            raise
    reply = report.decode(errors="replace")
    return Trial(True, "") if reply == token else Trial(False, reply or "it ended before the assertions were done")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and all processes that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()
