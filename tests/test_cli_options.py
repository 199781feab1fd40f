"""What is typed is what the library is asked for: every option of a command, and its default where it is left out."""

import dataclasses
import inspect
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from asked_library import ANSWERS, FOLDS, SAID, SAME, Asked, plain, run

from metaprobe.checkpoints import FlagOptions
from metaprobe.checkpoints.flagging import FlagKeywords
from metaprobe.cli import main
from metaprobe.training.options import (
    AdapterOptions,
    GateOptions,
    HiddenOptions,
    QualityOptions,
    RouterOptions,
)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts an `Asked` in the place of a function of the library."""
    monkeypatch.setattr("metaprobe.checkpoints.describe", lambda checkpoint: f"{SAID} {checkpoint}")
    monkeypatch.setattr(sys, "argv", ["metaprobe", "typed"])

    def put(name: str, answer: Any = None) -> Asked:
        asked = Asked(answer)
        monkeypatch.setattr(f"metaprobe.{name}", asked)
        return asked

    return put


def every_command(group: click.Group, *names: str) -> list[tuple[str, click.Command]]:
    found: list[tuple[str, click.Command]] = []
    for name, command in group.commands.items():
        inside = isinstance(command, click.Group)
        found += every_command(command, *names, name) if inside else [(" ".join((*names, name)), command)]  # type: ignore[arg-type]
    return found


COMMANDS = every_command(main)


def test_every_option_says_what_it_is_for_and_what_it_is_where_it_is_left_out() -> None:
    for name, command in COMMANDS:
        context = click.Context(command)
        for option in command.params:
            if isinstance(option, click.Option):
                assert option.help, (name, option.name)
                given = option.get_default(context)
                if not option.is_flag and given not in (None, (), "") and type(given).__name__ != "Sentinel":
                    said = f"{option.help} {option.get_help_extra(context).get('default', '')}"
                    assert str(given[0] if isinstance(given, tuple) else given) in said, (name, option.name)


def test_every_command_that_writes_a_checkpoint_says_what_it_may_replace() -> None:
    writing = []
    for name, command in COMMANDS:
        options = {option.name: option for option in command.params if isinstance(option, click.Option)}
        if "heckpoint" in str(getattr(options.get("out"), "help", "")):
            writing.append(name)
            assert {"replace", "pins"} <= options.keys(), name
            assert any("--log" in option.opts for option in options.values()), name
            assert options["replace"].is_flag
    assert len(writing) > 6


FLAGGING = ("flag_rate", "flag_below", "catch", "risk")


def test_the_four_ways_to_say_what_is_flagged_are_alike_in_every_command_that_has_one() -> None:
    found = {}
    for name, command in COMMANDS:
        options = {option.name: option for option in command.params if isinstance(option, click.Option)}
        if options.keys() & {"flag_rate", "flag_below", "catch"}:
            found[name] = [(options[one].help, options[one].opts, options[one].default) for one in FLAGGING]
    assert found.keys() == {
        "adapt", "check", "recalibrate", "retrain", "score", "serve", "train blend", "train hidden",
        "train quality", "train text",
    }  # fmt: skip
    assert all(one == found["adapt"] for one in found.values())
    assert set(inspect.get_annotations(FlagKeywords)) == {field.name for field in dataclasses.fields(FlagOptions)}


TRAININGS: dict[str, tuple[str, type, tuple[Any, ...], dict[str, Any]]] = {
    "quality": (
        "recipes.quality.train_quality", QualityOptions,
        (*ANSWERS, *FOLDS, "--target", "q", "--target", "r", "--label-source", "judge", "--raw-graph", "--new-tasks"),
        {**SAME, "target": ("q", "r"), "label_source": "judge", "raw_graph": True, "new_tasks": True},
    ),
    "hidden": (
        "recipes.hidden.train_hidden", HiddenOptions,
        (*ANSWERS, *FOLDS, "--target", "q", "--when", "before", "--layers", "every:2",
         "--position", "prompt_last", "--states-of", "m"),
        {**SAME, "target": "q", "when": "before", "layers": "every:2", "position": ("prompt_last",),
         "states_of": "m"},
    ),
    "gate": (
        "recipes.gate.train_gate", GateOptions,
        (*ANSWERS, *FOLDS, "--target", "q", "--alpha", 0.1, "--alpha", 0.2, "--stronger-accuracy", 0.8,
         "--stronger-price", 3),
        {**SAME, "target": "q", "alpha": (0.1, 0.2), "stronger_accuracy": 0.8, "stronger_price": 3.0},
    ),
    "adapter": (
        "recipes.adapter.train_adapter", AdapterOptions,
        (*ANSWERS, "--seed", 9, "--llm", "m", "--target", "q", "--when", "before", "--int8", "--max-length", 64),
        {"stage": "s", "agent": "a", "seed": 9, "llm": "m", "target": "q", "when": "before", "int8": True,
         "max_length": 64},
    ),
    "router": (
        "recipes.panel.train_router", RouterOptions,
        ("--seed", 9, "--agent", "a", "--agent", "b", "--signal", "confidence=x"),
        {"seed": 9, "agent": ("a", "b"), "signal": ("confidence=x",)},
    ),
}  # fmt: skip
"""Command -> what it calls, the options of that, what is typed and what it then is."""


@pytest.mark.parametrize("kind", TRAININGS)
def test_what_is_typed_is_what_is_trained(
    kind: str, stand_in: Any, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, options, typed, named = TRAININGS[kind]
    monkeypatch.setattr("metaprobe.training_cli.require", lambda *_: None)
    trained = stand_in(f"training.{function}", kind)
    for words, given in (((), {}), (typed, named)):
        result = run("train", kind, store, "--out", store / "o", *words)
        assert result.exit_code == 0, result.output
        assert result.stdout == f"{SAID} {kind}\n"
        data, asked = trained[-1][0]
        assert data == (store if kind == "router" else (store,))
        expected = options(out=store / "o", command="metaprobe typed", **given)
        for field in dataclasses.fields(options):
            if field.name not in ("on_step", "on_line"):
                assert plain(getattr(asked, field.name)) == plain(getattr(expected, field.name)), field.name


@pytest.mark.parametrize(
    ("kind", "typed"),
    [("gate", ("--alpha", "0")), ("gate", ("--alpha", "1")), ("quality", ("--folds", "1")), ("quality", ("--seed", -1)),
     ("hidden", ("--when", "during")), ("router", ("--seed", -1)), ("adapter", ("--max-length", 7))],
)  # fmt: skip
def test_a_value_out_of_range_is_a_usage_error_before_anything_is_read(
    kind: str, typed: tuple[str, ...], store: Path
) -> None:
    result = run("train", kind, store, "--out", store / "out", *typed)
    assert result.exit_code == 2, result.output
    assert typed[0] in result.stderr
