"""The house keeps its shape: imports run downwards, light rooms stay light, and no budget is passed."""

import ast
import importlib.util
import re
import sys
from pathlib import Path
from typing import get_args

import pytest
from test_architecture import HEAVY

import metaprobe.api
from metaprobe.probes.deferred import DONE_IN, Work
from metaprobe.records.store import RunStore

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import house  # noqa: E402

LIGHT = {"checkpoints", "probes", "routing"}
QUICK = "response to verdict"
"""The walk that takes about a second; the others train or serve under a tracer."""


def test_no_ceiling_of_imports_or_names_is_passed() -> None:
    assert house.over(house.measure(walks=False)) == []


@pytest.mark.parametrize(
    "walk", [pytest.param(walk, marks=[pytest.mark.slow] * (walk != QUICK)) for walk in house.WALKS]
)
def test_a_walk_enters_no_more_files_than_its_ceiling(walk: str) -> None:
    entered = house.files_entered(walk)
    ceiling = house.budgets()["walks"][walk]["at_most"]
    assert len(entered) <= ceiling, f"{len(entered)} files, expected at most {ceiling}: {' '.join(entered)}"
    assert any(file.startswith(("probes/", "training/")) for file in entered)


def test_a_name_counts_as_several_things_where_files_give_it_different_values(tmp_path: Path) -> None:
    files = {
        "a": "SEED = 1\nFEWEST = 2\n_OWN = 1\ndef fit(): ...\ndef _same(): ...\nIds = list\nRow = int",
        "b": "SEED = 1\nFEWEST: int = 3\n_OWN = 2\nclass Fit:\n    def fit(self): ...\ndef _same(): ...\nIds = list",
        "c/b": "ALONE = 1\ndef fit(): ...\nclass Row: ...\nclass _Text: ...\nclass Alone: ...",
        "d": "def late():\n    class _Text: ...",
    }
    for name, source in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").write_text(source)
    names = house.names_of_several_things({name: tmp_path / f"{name}.py" for name in files})
    assert names == {"constants": ["FEWEST"], "functions": ["fit"], "types": ["Row", "_Text"], "file names": ["b"]}


def test_no_docstring_or_comment_goes_on_from_a_name_above_it() -> None:
    """A reader of one sentence understands it; one that begins so has the name above it for its subject."""
    begins = re.compile(r'\s*(?:r?"""|# )(?:Of|What|As|So many|Returns the same)\b')
    folders = (ROOT / folder for folders in house.OUTSIDE.values() for folder in folders)
    outside = (path for folder in folders for path in folder.rglob("*.py"))
    wrong = []
    for path in {*house.sources().values(), *outside}:
        lines = path.read_text(encoding="utf-8").splitlines()
        for before, line in zip(["", *lines], lines, strict=False):
            if begins.match(line) and not before.lstrip().startswith("#"):
                wrong.append(f"{path}: {line.strip()}")
    assert wrong == []


def test_every_walk_has_a_ceiling_and_a_ceiling_that_is_passed_is_named() -> None:
    budgets = house.budgets()
    assert set(budgets) == {"imports", "names", "walks"}  # lines are for information
    assert set(budgets["walks"]) == set(house.WALKS)
    ceiling = budgets["walks"][QUICK]["at_most"]
    assert house.over({"walks": {QUICK: ceiling}}) == []
    [told] = house.over({"walks": {QUICK: ceiling + 1}})
    assert told == f"{QUICK} (walks): {ceiling + 1:,}; expected at most {ceiling:,}"
    assert house.over({"walks": {"to the attic": 1}}) == ["to the attic (walks): 1; expected at most 0"]


def test_cycles_are_found_also_inside_functions_by_name_and_for_type_checkers(tmp_path: Path) -> None:
    texts = {
        "metaprobe.records.a": "def late():\n    from metaprobe.records import b",
        "metaprobe.records.b": "import metaprobe.records.c",
        "metaprobe.records.c": "def late():\n    return require('metaprobe.records.a', 'fit')",
        "metaprobe.records.d": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import metaprobe.records.e",
        "metaprobe.records.e": "import metaprobe.records.d\nimport metaprobe.training.f",
        "metaprobe.training.f": "import metaprobe.records.d",
    }
    modules = {}
    for name, text in texts.items():
        modules[name] = tmp_path / f"{name}.py"
        modules[name].write_text(text)
    arrows = house.imports(modules)
    by_types = ["metaprobe.records.d", "metaprobe.records.e", "metaprobe.training.f"]
    assert sorted(house.cycles(arrows)) == [[f"metaprobe.records.{name}" for name in "abc"], by_types]
    assert house.not_downwards(arrows) == ["metaprobe.records.e -> metaprobe.training.f"]


def test_only_files_whose_functions_are_called_in_a_walk_are_entered(tmp_path: Path) -> None:
    """A module body, also one that is imported in the walk, counts for nothing, and neither do calls outside it."""
    from metaprobe.probes.features import features, schema

    other = tmp_path / "other.py"
    other.write_text("def called(): pass\ncalled()\n")
    entered = house.Entered()
    with entered.installed():
        features(schema("full"), [[-0.5, -0.25]])
        with entered.walk():
            spec = importlib.util.spec_from_file_location("other", other)
            assert spec is not None
            assert spec.loader is not None
            spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert entered.names() == []
    assert str(other) not in entered.files
    with entered.installed(), entered.walk():
        features(schema("full"), [[-0.5, -0.25]])
    assert "probes/features.py" in entered.names()


def imported_modules(path: Path) -> set[str]:
    modules = set()
    for node in house.facts_of(path).nodes:
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; use full names"
            modules.add(node.module or "")
    return modules


def test_imports_run_downwards_and_never_sideways() -> None:
    """Also those for type checkers only."""
    wrong = []
    for importer, path in house.sources().items():
        room = house.room_of(importer)
        for module in imported_modules(path):
            other = house.room_of(module)
            if module.split(".")[0] == "metaprobe" and other != room and house.FLOORS[other] >= house.FLOORS[room]:
                wrong.append(f"{path}: {room} (floor {house.FLOORS[room]}) imports {module}")
    assert wrong == []


def test_houses_see_the_core_by_names_of_the_api_alone_and_never_each_other() -> None:
    assert house.past_the_api(house.sources()) == []


PLANTED = {
    "from metaprobe.records.store import RunStore": "metaprobe.records.store",
    "def late():\n    from metaprobe.records.store import RunStore": "metaprobe.records.store",
    "import metaprobe.records.store": "metaprobe.records.store",
    "import metaprobe.api": "metaprobe.api",
    "from metaprobe import api": "metaprobe.api",
    "import metaprobe": "metaprobe",
    "from metaprobe import RunStore": "metaprobe",
    "store = require('metaprobe.records.store')": "metaprobe.records.store",
    "NAME = 'metaprobe.records.store:RunStore'": "metaprobe.records.store",
    "import_module('metaprobe.' + room)": "metaprobe 'metaprobe.' + room",
    "if TYPE_CHECKING:\n    from metaprobe.production.promotion import Promotion": "metaprobe.production.promotion",
    "from ..production import promotion": "..",
}
"""Code planted into a module of the papers -> what it reaches that it may not."""


@pytest.mark.parametrize("code", PLANTED)
def test_an_import_past_the_api_is_found(code: str, tmp_path: Path) -> None:
    planted = tmp_path / "demo.py"
    planted.write_text(f"from metaprobe.api import RunStore\nfrom metaprobe.papers.tasks import TASKS\n{code}\n")
    modules = {name: path for name, path in house.sources().items() if house.house_of(name) == "core"}
    others = {name: house.sources()[name] for name in ("metaprobe.papers.tasks", "metaprobe.production.promotion")}
    found = house.past_the_api({**modules, **others, "metaprobe.papers.demo": planted})
    assert f"metaprobe.papers.demo -> {PLANTED[code]}" in found
    assert {line.partition(" -> ")[0] for line in found} == {"metaprobe.papers.demo"}


def test_every_name_of_the_api_is_used_by_a_house_and_is_no_module_of_names() -> None:
    """A module would hide how many names cross; a name that no house uses belongs into no list."""
    modules = house.sources()
    tree = ast.parse(modules[house.API].read_text(encoding="utf-8"))
    typed = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("metaprobe.")
        for alias in node.names
    }
    assert typed == metaprobe.api._LATER
    assert sorted(typed) == sorted(metaprobe.api.__all__)
    crossing = set().union(*house.names_across(modules).values())
    assert crossing == {f"{house.API}:{name}" for name in typed}
    assert not [name for name, module in typed.items() if f"{module}.{name}" in modules]


def test_a_name_of_the_api_is_the_object_of_its_module_and_others_are_refused() -> None:
    assert metaprobe.api.RunStore is RunStore
    with pytest.raises(AttributeError, match="nothing"):
        metaprobe.api.nothing  # noqa: B018


def test_work_that_other_rooms_do_for_probes_is_named_by_the_front_door() -> None:
    assert DONE_IN.keys() == set(get_args(Work))
    assert {module for module, _ in DONE_IN.values()} <= house.sources().keys()


def test_light_rooms_import_no_heavy_library() -> None:
    light = [path for module, path in house.sources().items() if house.room_of(module) in LIGHT]
    heavy = {path: {module.split(".")[0] for module in imported_modules(path)} & HEAVY for path in light}
    assert {path: names for path, names in heavy.items() if names} == {}


def test_what_recipes_share_knows_no_recipe() -> None:
    arrows = house.imports({n: path for n, path in house.sources().items() if n.startswith("metaprobe.training")})
    shared = [one for one in arrows if re.fullmatch(r"metaprobe\.training\.[a-z_]+", one)]
    assert len(shared) > 15
    asking = {one for one in shared if any(other.startswith("metaprobe.training.recipes.") for other in arrows[one])}
    assert asking == set()


def test_no_class_has_the_name_of_another() -> None:
    assert [name for name, count in house.class_names(house.sources()).items() if count > 1] == []
