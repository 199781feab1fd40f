"""Wrong inputs are refused: exit code or class of the error, and the noun that its message must name.

`errors.json` has a row for each fault. `commands`: exit code, noun, the words of a command, and the text of the file
`{file}` where the command reads one. `calls`: class, noun, a public function, and what it is given.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from frozen.freeze import RECORDED, ROOT, frozen, run

import metaprobe

pytestmark = pytest.mark.filterwarnings("ignore")
ROWS = frozen("errors")


def placed(word: str, folder: Path) -> str:
    """The word with the places that it names."""
    places = {"{tmp}": folder, "{file}": folder / "file.jsonl", "{recorded}": RECORDED, "{root}": ROOT}
    for name, place in places.items():
        word = word.replace(name, str(place))
    return word


def told(output: str) -> str:
    """An output of a command without line breaks and frames, by which click folds usage errors."""
    return " ".join(output.split())


@pytest.mark.parametrize(("code", "noun", "words", "text"), ROWS["commands"], ids=lambda value: str(value)[:40])
def test_a_command_refuses_what_is_wrong(code: int, noun: str, words: list[str], text: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.jsonl").write_text(text, encoding="utf-8")
    done = run(*(placed(word, tmp_path) for word in words))
    assert done.exit_code == code, done.output
    assert noun in told(done.output)
    assert "Traceback" not in done.output
    assert done.exception is None or isinstance(done.exception, SystemExit)


@pytest.mark.parametrize(("name", "noun", "function", "given"), ROWS["calls"], ids=lambda value: str(value)[:40])
def test_a_call_refuses_what_is_wrong(name: str, noun: str, function: str, given: Any, tmp_path: Path) -> None:
    (tmp_path / "file.jsonl").touch()
    with pytest.raises(Exception) as caught:  # noqa: PT011 - its class is compared by name
        called(function, given, tmp_path)
    names = [kind.__name__ for kind in type(caught.value).__mro__]
    assert name in names, names
    assert noun in str(caught.value)


def called(function: str, given: Any, folder: Path) -> Any:
    """Calls a public name of metaprobe. A list holds positional arguments, and last the keywords."""
    if function == "predict":
        return metaprobe.QualityPredictor.load().predict(given)
    if function == "parse_response":
        return metaprobe.parse_response(given)
    if function == "runs":
        return list(metaprobe.RunStore(placed(given, folder)).runs())
    *words, named = given if isinstance(given, list) else [given, {}]
    named = {name: placed(value, folder) if isinstance(value, str) else value for name, value in named.items()}
    return getattr(metaprobe, function)(*(placed(word, folder) for word in words), **named)


def test_there_are_enough_rows_and_none_twice() -> None:
    rows = [json.dumps(row) for part in ROWS.values() for row in part]
    assert len(rows) == len(set(rows)) >= 120
