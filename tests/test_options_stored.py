"""Options that a system does not have are refused, and those that were set are kept with the store."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from scripted import ScriptedLLM
from set_up_systems import run_of, setup_of

from metaprobe.cli import main
from metaprobe.papers.collecting.collect import run_id
from metaprobe.papers.collecting.launch import launch
from metaprobe.papers.collecting.models import call_options, check_limits
from metaprobe.papers.collecting.plan import CollectionPlan
from metaprobe.papers.systems import SYSTEMS
from metaprobe.papers.systems.system_options import Options
from metaprobe.records.errors import MissingExtra, RecordError, StoreMismatch
from metaprobe.records.store import RunStore


@pytest.mark.parametrize(
    ("tokens", "constants", "said"),
    [
        (("essay=9",), (), r"caelf has no stage 'essay'; .* argue \(192\), reflect \(192\), attack \(4\)"),
        (("attack=0",), (), "above 0 or 'none'"),
        (("attack=many",), (), "above 0 or 'none'"),
        (("attack=4", "attack=5"), (), "attack has 4 already"),
        ((), ("rounds=2",), r"a constant of caelf: reflections \(1: how often .* --policy"),
        ((), ("reflections",), "expected NAME=VALUE"),
        ((), ("reflections=-1",), "reflections=-1: expected a whole number of at least 0"),
        ((), ("reflections=1.5",), "expected a whole number"),
        ((), ("reflections=1", "reflections=2"), "reflections is 1 already"),
    ],
)
def test_what_a_system_does_not_have_is_refused_before_a_model_is_loaded_and_what_it_has_is_named(
    tmp_path: Path, tokens: tuple[str, ...], constants: tuple[str, ...], said: str
) -> None:
    with pytest.raises(RecordError, match=said):
        launch(
            CollectionPlan(system="caelf", task="nowhere", llm=("nowhere",), tokens=tokens, constant=constants),
            tmp_path,
        )
    words = [word for text in tokens for word in ("--tokens", text)]
    words += [word for text in constants for word in ("--constant", text)]
    result = CliRunner().invoke(main, ["collect", "caelf", "--task", "nowhere", "--out", str(tmp_path), *words])
    assert result.exit_code == 1
    assert "caelf" in result.output or "already" in result.output or "expected" in result.output


def test_a_store_says_what_was_set_and_is_not_continued_with_something_else(tmp_path: Path) -> None:
    run_of(tmp_path, "caelf", tokens=("attack=9",), constants="reflections=2")
    pinned = json.loads((tmp_path / "collection.json").read_text())
    assert (pinned["tokens"], pinned["constants"]) == ({"attack": 9}, {"reflections": 2})
    for tokens, constants in (((), "reflections=2"), (("attack=9",), "")):
        with pytest.raises(StoreMismatch, match=r"tokens|constants"):
            run_of(tmp_path, "caelf", tokens=tokens, constants=constants)


def test_a_store_from_before_options_could_be_set_is_continued_with_the_defaults_only(tmp_path: Path) -> None:
    run_of(tmp_path, "caelf")
    settings = tmp_path / "collection.json"
    old = {k: v for k, v in json.loads(settings.read_text()).items() if k not in ("tokens", "constants")}
    settings.write_text(json.dumps(old))
    run_of(tmp_path, "caelf")
    with pytest.raises(StoreMismatch, match=r"constants \{'reflections': 1\}, now \{'reflections': 2\}"):
        run_of(tmp_path, "caelf", constants="reflections=2")


def test_without_a_limit_a_model_of_this_machine_is_refused_first(tmp_path: Path) -> None:
    plan = CollectionPlan(system="metacogagent", task="metacog-eval", llm=("nowhere",), tokens=("answer=none",))
    with pytest.raises(RecordError, match="tokens answer=none: nowhere runs on this machine"):
        launch(plan, tmp_path)
    system, endpoint = SYSTEMS["metacogagent"], "openai:m@http://127.0.0.1:9/v1"
    options = call_options(system, ("answer=none",))
    check_limits(options, system, {"": endpoint, "assess": "local"}, system.agents)  # only answers are not cut
    with pytest.raises(RecordError, match="local runs on this machine"):
        check_limits(options, system, {"": endpoint, "gamma": "local"}, system.agents)


def test_a_package_that_a_system_needs_is_missed_before_anything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "clingo", None)
    with pytest.raises(MissingExtra, match=r"clingo .*pip install 'clingo>=5"):
        launch(CollectionPlan(system="caelf", task="nowhere", llm=("nowhere",)), tmp_path)
    with pytest.raises(RecordError, match="nowhere"):  # one model in one conversation argues about nothing
        launch(CollectionPlan(system="caelf", task="nowhere", llm=("nowhere",), variant=("single",)), tmp_path)


@pytest.mark.parametrize("name", ["gsm8k-self-refine", "creak-cot"])
def test_recorded_runs_keep_their_ids_where_nothing_is_set(name: str) -> None:
    """So that a store from before options could be set is resumed, and its calls are not asked again."""
    runs = list(RunStore(Path(__file__).parent.parent / "recorded" / name))
    system, model = SYSTEMS[runs[0].system], runs[0].id.split("/")[2]
    setup = setup_of(system.name, Options(), ScriptedLLM({}, name=model))
    found = {run_id(system, run.variant, setup, run.item) == run.id for run in runs}
    assert found == {True}
    changed = dataclasses.replace(setup, options=Options(tokens={"answer": 9}))
    assert run_id(system, runs[0].variant, changed, runs[0].item) != runs[0].id
