"""The sandbox runs programs, stops them at its limits, and reports on them."""

import signal
import subprocess

import pytest

from metaprobe.records.sandbox import run_assertions

HOLDS = ["assert f(1) == 2"]
CORRECT = "def f(x):\n    return x + 1"


def test_a_correct_function_passes_and_may_print_and_import() -> None:
    assert run_assertions(CORRECT, HOLDS).passed
    assert run_assertions("import math, re\ndef f(x):\n    print('x' * 10**6)\n    return x + 1", HOLDS).passed


def test_every_assertion_counts() -> None:
    trial = run_assertions(CORRECT, [*HOLDS, "assert f(2) == 5"])
    assert (trial.passed, trial.reason) == (False, "does not hold: assert f(2) == 5")


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("def f(x) return x", "SyntaxError"),
        ("def f(x):\n    return [0] * 10**12", "MemoryError"),
        ("def f(x):\n    return f(x)", "RecursionError"),
        ("open('left.txt', 'w').write('x')", "PermissionError"),
        ("import os\nos.fork()", "PermissionError"),
        ("import subprocess\nsubprocess.run(['true'])", "PermissionError"),
        ("import socket\nsocket.socket()", "PermissionError"),
        ("import sys\nsys.exit(0)", "SystemExit"),
        ("import os\nos._exit(0)", "ended before the assertions"),
        ("x = input()", "EOFError"),
        ("\0", "NUL"),
    ],
)
def test_a_candidate_that_misbehaves_fails_with_a_reason(code: str, says: str) -> None:
    trial = run_assertions(code, HOLDS)
    assert not trial.passed
    assert says in trial.reason


def test_an_endless_loop_ends_at_the_time_limit() -> None:
    trial = run_assertions("def f(x):\n    while True:\n        pass", HOLDS, timeout_s=0.2)
    assert trial.reason == "no end within 0.2 s"


def test_a_growing_list_ends_at_the_memory_limit() -> None:
    grows = "x = []\nwhile True:\n    x.append('a' * 10**6)"
    assert "MemoryError" in run_assertions(grows, HOLDS, memory_bytes=64 * 2**20, timeout_s=5).reason


def test_writing_to_every_descriptor_or_printing_a_pass_is_no_pass() -> None:
    loop = "for fd in range(30):\n    try:\n        os.write(fd, b'passed')\n    except OSError:\n        pass\n"
    shout = f"import os\nprint('passed')\n{loop}os._exit(0)"
    assert not run_assertions(shout, HOLDS).passed


def test_the_candidate_sees_no_environment_no_input_and_an_empty_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("METAPROBE_SECRET", "1")
    look = "import os\nseen = [k for k in os.environ if not k.startswith('LC_')]\nhere = os.listdir('.')"
    assert run_assertions(look, ["assert seen == [], seen", "assert here == []"]).passed


def test_a_long_reason_is_cut_and_ctrl_c_leaves_no_candidate_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert len(run_assertions("raise ValueError('x' * 1000)", HOLDS).reason) == 500
    started = []

    class Interrupted(subprocess.Popen[bytes]):
        def communicate(self, *given: object, **named: object) -> tuple[bytes, bytes]:
            started.append(self)
            raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_assertions("while True: pass", HOLDS)
    assert [process.returncode for process in started] == [-signal.SIGKILL]
