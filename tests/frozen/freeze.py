"""Five ends that must stay as they are while the code between them is rebuilt.

| file | end |
|---|---|
| `test_verdicts.py` | verdicts of the bundled checkpoints on recorded answers, and on answers that must be refused |
| `test_trained.py` | checkpoints that are trained from recorded runs, and what they decide on other runs |
| `test_report.py` | the numbers that `metaprobe compare` writes |
| `test_evening.py` | a log, from the first answer to a promoted checkpoint and back |
| `test_errors.py` | class or exit code, and key noun, of error messages |

The JSON file beside each test holds what its end gives today. The tests use only the command line, HTTP and the public
names of `metaprobe`, so that every inner module may move or vanish.

A changed number is a changed behaviour. Do not write a file again to make a change pass. Who means to change an end
writes it with `python tests/frozen/freeze.py END` in a commit of its own, and the commit says what changed and why.
A sentence of a verdict's reason may be reworded: each stands once, in the list `sentences` of `verdicts.json`.
`errors.json` is written by hand.
"""

import importlib
import json
import math
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from metaprobe.cli import main as command_line

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
RECORDED = ROOT / "recorded"
WITHIN = 1e-6
"""Share by which a frozen number may differ, and absolutely for numbers below 1. Seven digits of it are stored."""
DIGITS = 8
"""Significant digits that are stored, so that rounding stays far below `WITHIN`."""


def run(*words: object) -> Result:
    """Runs a command of metaprobe in this process."""
    return CliRunner().invoke(command_line, list(map(str, words)))


def done(*words: object) -> str:
    """Runs a command that must succeed, and returns what it prints."""
    result = run(*words)
    assert result.exit_code == 0, result.output
    return result.stdout


def as_json(value: Any) -> Any:
    """Returns `value` as JSON gives it back, with rounded numbers."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): as_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(each) for each in value]
    return value


def differences(now: Any, then: Any, within: Callable[[str], float], at: str = "") -> list[str]:
    """Returns a line for each place at which `now` and `then` differ by more than `within(place)`."""
    if isinstance(now, dict) and isinstance(then, dict):
        lines = [f"{at}/{key}: {'new' if key in now else 'missing'}" for key in sorted(now.keys() ^ then.keys())]
        shared = [key for key in then if key in now]
        return lines + [line for key in shared for line in differences(now[key], then[key], within, f"{at}/{key}")]
    if isinstance(now, list) and isinstance(then, list) and len(now) == len(then):
        pairs = enumerate(zip(now, then, strict=True))
        return [line for place, (a, b) in pairs for line in differences(a, b, within, f"{at}/{place}")]
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in (now, then))
    if numbers and math.isclose(now, then, rel_tol=within(at), abs_tol=within(at)):
        return []
    return [] if not numbers and now == then else [f"{at}: {now!r}, frozen {then!r}"]


def frozen(end: str) -> Any:
    return json.loads((HERE / f"{end}.json").read_text(encoding="utf-8"))


def check(end: str, part: str, now: Any, *, within: Mapping[str, float] | None = None) -> None:
    """Compares a part of an end with what is frozen.

    `within` maps the beginning of a place to the share by which its numbers may differ, where that is not `WITHIN`.
    """
    shares = within or {}

    def share(at: str) -> float:
        return max((shares[begin] for begin in shares if at.startswith(begin)), default=WITHIN)

    lines = differences(as_json(now), frozen(end)[part], share)
    assert not lines, f"{end}/{part}: {len(lines)} differences\n" + "\n".join(lines[:20])


def write(end: str) -> None:
    """Writes an end as it is now. Its module has a dictionary `PARTS`: name -> function that takes an empty folder."""
    from tempfile import TemporaryDirectory

    parts = {}
    for name, make in importlib.import_module(f"frozen.test_{end}").PARTS.items():
        with TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parts[name] = as_json(make(Path(folder)))
    text = ",\n".join(
        f"{json.dumps(name)}: {{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in part.items()) + "\n}"
        for name, part in parts.items()
    )
    (HERE / f"{end}.json").write_text("{\n" + text + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(HERE.parent)]
    for each in sys.argv[1:]:
        write(each)
