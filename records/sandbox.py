"""Run a short function against assertions in a process of its own, with limits.

The limits are there for accidents: an endless loop, a list that grows without end, a stray `open(..., "w")`. They are
not a security boundary: code that means harm can get around them. Run the answers of a model you do not trust in a
container or a virtual machine.

The candidate gets `python -I -S`, an empty environment, an empty temporary folder as its working folder, no input, and
its output is thrown away. Wall-clock time, processor time and address space are bounded, files may have 0 bytes, no
further process may be started (where the system grants that limit: not to root), and an audit hook refuses writing,
deleting, starting processes, signals and sockets. It passes only if a random token, which it is not told, comes back
after the last assertion: printing something or leaving early cannot pass. Where Python has no `resource` module
(Windows), the time limit and the audit hook are all there is.
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
    """The outcome of one candidate."""

    passed: bool
    reason: str
    """Empty where it passed; else the first thing that went wrong, in a line."""


def run_assertions(
    code: str, assertions: Sequence[str], *, timeout_s: float = 2.0, memory_bytes: int = 512 * 2**20
) -> Trial:
    """Whether all assertions hold after `code` has run. Takes about 30 ms, or `timeout_s` where it does not end."""
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
    told = report.decode(errors="replace")
    return Trial(True, "") if told == token else Trial(False, told or "it ended before the assertions were done")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the process and whatever it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        process.kill()
