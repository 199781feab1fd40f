"""`import metaprobe` gives few names, options shared with the command line, objects that show themselves."""

import dataclasses
import doctest
import html
import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from made_up_report import made_up as hostile
from tiny import tiny_quality

import metaprobe
from metaprobe.checkpoints.display import field_docs
from metaprobe.cli import main
from metaprobe.eval.results import Comparison
from metaprobe.records.errors import MissingExtra
from metaprobe.records.extras import require
from metaprobe.training import training_options as options
from metaprobe.training.success_options import SuccessOptions

PAIRS = {
    "train_quality": (("train", "quality"), options.QualityOptions, "metaprobe.training.recipes.train_quality"),
    "train_hidden": (("train", "hidden"), options.HiddenOptions, "metaprobe.training.recipes.train_hidden"),
    "train_gate": (("train", "gate"), options.GateOptions, "metaprobe.training.recipes.gate"),
    "train_panel": (("train", "panel"), options.PanelOptions, "metaprobe.training.recipes.panel"),
    "train_router": (("train", "router"), options.RouterOptions, "metaprobe.training.recipes.panel"),
    "train_success": (("train", "success"), SuccessOptions, "metaprobe.training.recipes.train_success"),
    "train_text": (("train", "text"), options.TextOptions, "metaprobe.training.recipes.train_text"),
    "train_adapter": (("train", "adapter"), options.AdapterOptions, "metaprobe.training.adapter"),
    "compare": (("compare",), options.CompareOptions, "metaprobe.training.recipes.compare_runs"),
}
"""Function -> its command, its options, and where what both call is."""
ONLY_IN_PYTHON = {"on_step", "on_line", "command"}


@pytest.mark.parametrize("name", PAIRS)
def test_a_command_calls_what_its_function_calls(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words, _, module = PAIRS[name]
    called: list[Any] = []

    class Called(Exception):
        pass

    def instead(data: Any, given: Any) -> None:
        called.append((data, given))
        raise Called

    monkeypatch.setattr(f"{module}.{name}", instead)
    (tmp_path / "runs").mkdir()
    line = [*words, str(tmp_path / "runs"), "--out", str(tmp_path / "out"), "--seed", "7"]
    assert isinstance(CliRunner().invoke(main, line).exception, Called)
    with pytest.raises(Called):
        getattr(metaprobe, name)(tmp_path / "runs", out=tmp_path / "out", seed=7)
    (_, typed), (_, python) = called
    assert type(typed) is type(python)
    for field in dataclasses.fields(typed):
        if field.name not in {*ONLY_IN_PYTHON, "target"}:
            assert getattr(typed, field.name) == getattr(python, field.name), field.name
    assert python.recorded(name) == f"metaprobe.{name}(seed=7)"


@pytest.mark.parametrize("name", PAIRS)
def test_help_of_a_function_explains_every_option(name: str) -> None:
    function, taken = getattr(metaprobe, name), PAIRS[name][1]
    names = {field.name for field in dataclasses.fields(taken)}
    assert names <= inspect.signature(function).parameters.keys()
    assert names == {found for found in names if re.search(rf"- `{found}`: \w", function.__doc__)}


def test_an_option_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match="taget"):
        metaprobe.train_quality("runs", out="out", taget="correct")  # type: ignore[call-arg]


@pytest.mark.parametrize(("name", "package"), [("train_quality", "lightgbm"), ("train_router", "onnxmltools")])
def test_a_missing_package_is_named_with_its_extra(
    name: str, package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"{package} .* pip install '\.\[fit\]'"):
        getattr(metaprobe, name)("runs", out=tmp_path / "out")


def test_what_a_module_of_ours_needs_is_named_with_the_extra_and_what_anothers_needs_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delitem(sys.modules, "metaprobe.llms.openai_client", raising=False)
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MissingExtra, match=r"openai .* pip install '\.\[api\]'"):
        require("metaprobe.llms.openai_client", "api")
    (tmp_path / "outer_package.py").write_text("import missing_inner_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="missing_inner_package") as raised:
        require("outer_package", "api")
    assert not isinstance(raised.value, MissingExtra)


SHOWN = [
    *(cls for name in metaprobe.__all__ if dataclasses.is_dataclass(cls := getattr(metaprobe, name))),
    Comparison,
]


@pytest.mark.parametrize("cls", SHOWN, ids=lambda cls: cls.__name__)
def test_help_of_a_class_explains_every_field(cls: type) -> None:
    public = {field.name for field in dataclasses.fields(cls) if not field.name.startswith("_")}
    assert public - field_docs(cls).keys() == set()
    assert all(f"- `{name}`: " in (inspect.getdoc(cls) or "") for name in public)


def examples() -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.slow] if name in PAIRS else []) for name in metaprobe.__all__]


@pytest.mark.parametrize("name", examples())
@pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")  # of so little data
def test_every_name_has_an_example_that_runs(
    name: str, recorded_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = getattr(metaprobe, name)
    if isinstance(found, type) and issubclass(found, Exception):
        return
    monkeypatch.chdir(tmp_path)
    if name in PAIRS or name == "Panel":
        (tmp_path / "runs").symlink_to(recorded_runs)
        write_outcomes(tmp_path / "outcomes.jsonl")
    names = vars(sys.modules[found.__module__])
    [test] = doctest.DocTestFinder(recurse=False).find(found, name, globs=dict(names))
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0


def write_outcomes(path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = []
    for i in range(120):
        agents = {}
        for name, skill, price in (("small", 0.5, 0.0001), ("large", 0.9, 0.0008)):
            right = int(rng.random() < skill)
            agents[name] = {"answer": str(right), "correct": right, "confidence": 0.5, "cost_usd": price}
        lines.append({"id": f"q{i}", "group": f"g{i}", "question": f"question {i}", "agents": agents})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def things(folder: Path) -> list[Any]:
    checkpoint = tiny_quality(folder / "<b>quality")
    predictor = metaprobe.QualityPredictor(checkpoint)
    probes = [metaprobe.load(f"bundled:smollm2-135m-{name}") for name in ("confidence", "difficulty")]
    return [checkpoint, predictor, predictor.predict([-0.2, -3.0]), *probes, metaprobe.load("bundled:gate")]


def test_objects_show_themselves_shortly_and_as_tables_in_dark_and_light(tmp_path: Path) -> None:
    for thing in things(tmp_path):
        assert len(repr(thing)) < 250
        assert repr(thing).startswith(type(thing).__name__)
        shown = thing._repr_html_()
        assert "<b>quality" not in shown  # the folder's name
        assert re.findall(r"#[0-9a-f]{3,6}|rgb|white|black", shown) == []  # colours are the notebook's


def test_verdicts_and_checkpoints_are_json(tmp_path: Path) -> None:
    checkpoint, _, verdict, *_ = things(tmp_path)
    assert json.loads(json.dumps(verdict.to_dict()))["score"] == verdict.score
    assert json.loads(json.dumps(checkpoint.to_dict()))["manifest"]["thresholds"] == {"flag": 0.4}


def test_a_comparison_shows_itself_and_becomes_json_and_a_pandas_table(monkeypatch: pytest.MonkeyPatch) -> None:
    found = hostile()
    assert len(repr(found)) < 250
    assert repr(found).startswith(f"Comparison({len(found.y)} answers, {len(found.methods)} methods")
    shown = found._repr_html_()
    assert all(html.escape(method.name) in shown for method in found.methods)
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert told["methods"].keys() == {method.name for method in found.methods}
    first = found.methods[0]
    pandas = pytest.importorskip("pandas")
    table = found.to_pandas()
    assert isinstance(table, pandas.DataFrame)
    assert table.loc[first.name, "auroc"] == first.auroc.estimate
    assert table.loc[first.name, "auroc_low"] == first.auroc.low
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtra, match="pip install pandas"):
        found.to_pandas()
