"""The pages: their code runs, their command lines parse, their links lead somewhere, and the site builds."""

import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest
from docs_worlds import WORLDS

import metaprobe
from metaprobe.cli import APP_OF_COMMAND, COMMAND_PLUGINS, main
from metaprobe.records.importer import read_openai_lines

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = {str(path.relative_to(DOCS).with_suffix("")): path for path in sorted(DOCS.rglob("*.md"))}
EVERYWHERE = [*PAGES.values(), ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("apps/*/README.md"))]
BLOCK = re.compile(r"(?:<!-- not run: (?P<why>.+?) -->\n+)?```python\n(?P<code>.*?)```", re.S)
NOT_RUN = {"text": 1, "engines": 1, "import": 1, "watch": 1}
"""Page -> blocks that cannot be run here; each says why in a comment above it."""


ABSENT = set(APP_OF_COMMAND) - set(COMMAND_PLUGINS.names())
"""Commands of apps that are not installed here: their lines are not checked."""


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def blocks(page: str) -> list[re.Match[str]]:
    return list(BLOCK.finditer(text(PAGES[page])))


WITH_CODE = [page for page in PAGES if blocks(page)]
TRAINING = {"compare", "route", "several-answers", "train"}
"""Pages whose code trains on recorded runs, which takes the time of some hundred other tests."""


def test_every_page_with_code_has_a_world_to_run_it_in() -> None:
    assert set(WITH_CODE) == set(WORLDS)
    assert {page: n for page in WITH_CODE if (n := sum(bool(block["why"]) for block in blocks(page)))} == NOT_RUN


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.slow] * (page in TRAINING)) for page in WITH_CODE]
)
@pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")  # of so little data
@pytest.mark.filterwarnings("ignore:metaprobe. hidden states are scored unchecked")  # a probe fitted on arrays
def test_the_python_of_a_page_runs_from_top_to_bottom(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = WORLDS[page](tmp_path)
    for block in blocks(page):
        if not block["why"]:
            line = text(PAGES[page])[: block.start("code")].count("\n")
            exec(compile("\n" * line + block["code"], str(PAGES[page]), "exec"), names)


def test_labels_joined_as_the_first_steps_do_are_the_labels_of_their_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = WORLDS["start"](tmp_path) | {"json": json}
    [join] = [block["code"] for block in blocks("start") if "labelled.jsonl" in block["code"]]
    exec(join, names)
    told = {run.id: run.outcome for run in read_openai_lines("labelled.jsonl")}
    known = {run.id: run.outcome for run in read_openai_lines(ROOT / "examples" / "responses.jsonl")}
    assert told == known | {next(iter(known)): None}


def test_what_the_python_of_a_page_loads_was_made_by_a_command_or_a_call_of_the_pages() -> None:
    pages = "\n".join(text(path) for path in PAGES.values())
    made = set(re.findall(r"""(?:--out |--export |out="|\.save\(")([\w./-]+)""", pages))
    loaded = re.findall(r"""(?:metaprobe|Predictor|Probe|Panel|Gate)\.load\("([\w./:-]+)\"""", pages)
    assert len(loaded) > 10
    assert [path for path in loaded if path not in made and not path.startswith(("bundled:", "hub:"))] == []


def command_lines() -> list[tuple[str, str]]:
    """(page, line) of every `metaprobe ...` in a shell block."""
    found = []
    for path in EVERYWHERE:
        for block in re.findall(r"```bash\n(.*?)```", text(path), re.S):
            joined = block.replace("\\\n", " ")
            found += [(path.name, line) for line in re.findall(r"metaprobe (.+?)(?:\s+[#>|].*)?$", joined, re.M)]
    return [(page, line) for page, line in found if line.split()[0] not in ABSENT]


CHECKED = (click.Choice, click.types.IntParamType, click.types.FloatParamType)
"""Kinds of values that can be judged without the files they may name."""


def parsed(words: list[str]) -> click.Context:
    """The command that the words name, with its options parsed; paths need not exist."""
    command: click.Command = main
    while (
        isinstance(command, click.Group) and words and (inside := command.get_command(click.Context(command), words[0]))
    ):
        command, words = inside, words[1:]
    context = click.Context(command, info_name=command.name)
    values, rest, _ = command.make_parser(context).parse_args(args=words)
    assert not rest, f"left over: {rest}"
    for parameter in command.params:
        given = values.get(parameter.name or "")
        if parameter.required:
            assert given, f"{parameter.name} is missing"
        if given is not None and isinstance(parameter.type, CHECKED):
            parameter.type_cast_value(context, given)
    return context


def test_every_command_line_in_a_shell_block_is_one_that_the_program_takes() -> None:
    lines = command_lines()
    assert len(lines) >= 30
    for page, line in lines:
        if line.startswith(".cli "):  # accelerate launch -m metaprobe.cli ...
            line = line.removeprefix(".cli ")
        words = shlex.split(line)
        try:
            assert not isinstance(parsed(words).command, click.Group), f"{page}: metaprobe {line}"
        except click.ClickException as error:
            pytest.fail(f"{page}: metaprobe {line}: {error.format_message()}")


def test_commands_named_in_the_text_exist() -> None:
    for path in EVERYWHERE:
        for line in re.findall(r"`metaprobe ([a-z][^`]*)`", text(path)):
            words = line.split("|")[0].split()
            if words[0] in ABSENT:
                continue
            command: click.Command = main
            while isinstance(command, click.Group) and words:
                inside = command.get_command(click.Context(command), words.pop(0))
                assert inside is not None, f"{path.name}: metaprobe {line}"
                command = inside
            known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
            assert {word for word in words if word.startswith("--")} <= known, f"{path.name}: metaprobe {line}"


def test_files_that_the_architecture_says_to_read_exist() -> None:
    page = text(DOCS / "architecture.md")
    row = r"^\| (?:[\d-]|production|papers) \| `([\w/]+)/` \| .*? \| (.+) \|$"
    rooms = re.findall(row, page, re.M)
    named = [f"{room}/{name}" for room, cell in rooms for name in re.findall(r"`([\w/]+\.py)`", cell)]
    named += re.findall(r"`((?:\w+/)+\w+\.py)(?:: [\w.]+)?`", re.sub(row, "", page, flags=re.M))
    assert len(rooms) >= 12
    assert [name for name in named if not (ROOT / name).exists()] == []


def anchors(path: Path) -> set[str]:
    """Returns the anchors of a page's headings, as the site makes them; where GitHub makes another, no link may use
    it."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text(path), flags=re.S), re.M)
    plain = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings]
    return {site for name in plain if (site := re.sub(r"[-\s]+", "-", name)) == name.replace(" ", "-")}


def test_every_link_of_every_page_leads_to_a_file_and_a_heading() -> None:
    for path in EVERYWHERE:
        for link in re.findall(r"\]\(((?!https?:)[^)\s]+)\)", re.sub(r"```.*?```", "", text(path), flags=re.S)):
            target, _, anchor = link.partition("#")
            page = (path.parent / target).resolve() if target else path
            assert page.exists(), f"{path.name}: {link}"
            assert not path.is_relative_to(DOCS) or page.is_relative_to(DOCS), (
                f"{path.name}: {link} is outside the site"
            )
            assert not anchor or anchor in anchors(page), f"{path.name}: {link}; there are {sorted(anchors(page))}"


def test_the_navigation_names_every_page_once() -> None:
    named = re.findall(r": (\S+)\.md$", text(ROOT / "mkdocs.yml"), re.M)
    assert sorted(named) == sorted(PAGES)


NO_GUIDES = {"index", "start", "notebooks", "commands", "architecture"}
"""The home page, first steps, what is generated, and what is for who changes the code."""


def test_the_guides_are_few_and_short_and_name_what_they_need() -> None:
    guides = {name: text(path) for name, path in PAGES.items() if "/" not in name and name not in NO_GUIDES}
    assert len(guides) <= 20
    assert sum(len(page.split()) for page in guides.values()) <= 25_000
    commands = {name for name, page in guides.items() if re.search(r"```bash\n.*?metaprobe ", page, re.S)}
    opening = {name: page.partition("\n## ")[0] for name, page in guides.items()}
    assert [name for name in commands if not re.search(r"`pip install '\.\[|base install", opening[name])] == []


METHODS = "methods"
"""Page of docs/research/ that explains what the measured pages share, and measures nothing."""


def measured_pages() -> dict[str, Path]:
    """Returns name -> path of each page that opens with an answer and has a picture."""
    return {path.stem: path for path in sorted((DOCS / "research").glob("*.md")) if path.stem != METHODS}


def test_a_measured_page_opens_with_its_answer() -> None:
    for name, path in measured_pages().items():
        opening = re.sub(r"<!--.*?-->", "", text(path).partition("\n")[2].partition("\n## ")[0], flags=re.S)
        answer = next(part for part in opening.split("\n\n") if part.strip())
        assert 3 <= len(re.findall(r"[.!?](?=\s|$)", answer)) <= 4, f"{name}: {answer}"


def test_a_measured_page_has_a_picture_and_how_to_repeat_it_in_few_words() -> None:
    for name, path in measured_pages().items():
        page = text(path)
        assert len(page.split()) <= 1500, f"{path.name}: {len(page.split())} words"
        assert f"(../figures/measured/{name}.svg)" in page, path.name
        assert "## How to repeat it" in page, path.name
        assert "**The question.**" in page, path.name


def test_the_research_pages_together_are_read_in_an_hour() -> None:
    assert sum(len(text(path).split()) for path in (DOCS / "research").glob("*.md")) <= 15_000


def test_the_reference_names_modules_that_exist() -> None:
    for page, path in PAGES.items():
        for module in re.findall(r"^::: (\S+)$", text(path), re.M) if page.startswith("api/") else ():
            assert importlib.util.find_spec(module) is not None, f"{page}: {module}"


def test_the_citation_gives_the_version_of_the_package() -> None:
    version = tomllib.loads(text(ROOT / "pyproject.toml"))["project"]["version"]
    cited = re.search(r"^version: (.+)$", text(ROOT / "CITATION.cff"), re.M)
    assert cited is not None
    assert cited[1] == version


def test_no_page_names_a_path_of_this_machine() -> None:
    for path in EVERYWHERE:
        assert not re.search(r"(?<![\w.])/(?:home|root|tmp|work|Users)/", text(path)), path.name


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    if importlib.util.find_spec("zensical") is None:
        pytest.skip("needs the extra `docs`")
    for name in ("docs", "mkdocs.yml", "pyproject.toml"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "src" / "metaprobe", tmp_path / "src" / "metaprobe")
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    reference = text(tmp_path / "out" / "site" / "api" / "metaprobe.html")
    assert [name for name in metaprobe.__all__ if f'id="metaprobe.{name}"' not in reference] == []
    for page in (tmp_path / "out" / "site").rglob("*.html"):  # nothing is loaded from elsewhere
        assert not re.findall(r'(?:<script[^>]*src|<link[^>]*href|<img[^>]*src)="https?://', text(page)), page.name


def test_scripts_and_make_targets_named_on_the_pages_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", text(ROOT / "Makefile"), re.M))
    for path in EVERYWHERE:
        for script in re.findall(r"python ((?:examples|scripts)/\w+\.py)", text(path)):
            assert (ROOT / script).exists(), f"{path.name}: {script}"
        for module in re.findall(r"python -m ((?:benchmarks|research)[\w.]+)", text(path)):
            assert (ROOT / f"{module.replace('.', '/')}.py").exists(), f"{path.name}: {module}"
        for target in re.findall(r"(?:^|`)make ([a-z-]+)\b", text(path), re.M):
            assert target in targets, f"{path.name}: make {target}"
