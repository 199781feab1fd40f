"""The README's code prints what the README says, with the checkpoint that comes with the package."""

import re
import shlex
import warnings
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from metaprobe.cli import ENTRY_POINTS, IN_APPS, main
from metaprobe.records.plugins import entry_point_names

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [README, *(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").rglob("*.md")))]


def test_the_python_of_the_readme_prints_what_stands_below_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    [found] = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", README, flags=re.S)
    code, shown = found
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == shown


def test_the_readme_reaches_a_first_result_within_sixty_lines() -> None:
    assert README[: README.index("```text")].count("\n") < 60


def test_the_import_line_of_the_guide_imports(tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "train.md").read_text(encoding="utf-8")
    line = re.search(r"```json\n(.*?)```", guide, flags=re.S)
    assert line is not None
    (tmp_path / "lines.jsonl").write_text(line[1])
    done = CliRunner().invoke(main, ["import", str(tmp_path / "lines.jsonl"), "--out", str(tmp_path / "runs")])
    assert done.exit_code == 0, done.output


def command_of(words: list[str]) -> click.Command:
    """The click command that the first words of a line name."""
    command: click.Command = main
    while (
        isinstance(command, click.Group) and words and (inside := command.get_command(click.Context(command), words[0]))
    ):
        command, words = inside, words[1:]
    return command


def test_every_command_line_of_the_docs_has_commands_and_options_that_exist() -> None:
    lines = [line for page in PAGES for line in re.findall(r"^metaprobe (.+?)(?:\s+#.*)?$", page, flags=re.M)]
    assert len(lines) >= 6
    for line in lines:
        words = shlex.split(line)
        if words[0] in set(IN_APPS) - set(entry_point_names(ENTRY_POINTS)):  # of an app that is not installed here
            continue
        command = command_of(words)
        assert not isinstance(command, click.Group), line
        known = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
        assert {word for word in words if word.startswith("--")} <= known, line
        needed = [p for p in command.params if isinstance(p, click.Option) and p.required]
        assert all(set(parameter.opts) & set(words) for parameter in needed), line


def test_every_file_that_the_readme_links_exists() -> None:
    for link in re.findall(r"\]\(((?!http)[^)]+)\)", README):
        page, _, anchor = link.partition("#")
        assert (ROOT / page).exists(), link
        headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.M) if anchor else []
        assert not anchor or anchor in {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}, link
