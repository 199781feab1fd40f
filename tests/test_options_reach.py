"""What is typed on the command line reaches the function that does the work, every option of it."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from metaprobe.cli import main
from metaprobe.monitoring.entry import Entry
from metaprobe.monitoring.log import ScoreLog
from metaprobe.serving.http.settings import Settings
from metaprobe.training.options import (
    AdapterOptions,
    BlendOptions,
    CompareOptions,
    GateOptions,
    HiddenOptions,
    QualityOptions,
    RouterOptions,
)

NOVEMBER = 1_764_460_800.0  # 2025-11-30, midnight in UTC


class Reached(Exception):
    """Ends the command where the work would begin."""


class Listener:
    """Stands in for a function, and keeps what it was given."""

    def __init__(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        module, _, attribute = name.rpartition(".")
        self.given: tuple[Any, ...] = ()
        self.named: dict[str, Any] = {}
        owner: Any = import_module(module) if not module.endswith("ScoreLog") else ScoreLog
        monkeypatch.setattr(owner, attribute, self)

    def __call__(self, *given: Any, **named: Any) -> None:
        self.given, self.named = given, named
        raise Reached


@pytest.fixture
def reach(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]:
    """Runs a command until it calls the named function; returns what that was given, in order and by name."""

    def run(name: str, *words: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
        with monkeypatch.context() as patch:
            listener = Listener(name, patch)
            done = CliRunner().invoke(main, list(map(str, words)))
        assert isinstance(done.exception, Reached), done.output
        return listener.given, listener.named

    return run


@pytest.fixture(autouse=True)
def typed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a checkpoint says that it was made by is what was typed."""
    monkeypatch.setattr("sys.argv", ["metaprobe", "train", "--seed", "4"])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    with ScoreLog.open(tmp_path / "log.sqlite") as opened:
        for number in range(40):
            kept = {"request_id": f"r{number}", "time": 1e9 + number, "model": "m", "checkpoint": "c" * 64}
            opened.write(Entry(**kept, score=number / 40, flagged=number < 9))  # type: ignore[arg-type]
    return tmp_path / "log.sqlite"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    return tmp_path / "runs"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "some.jsonl").write_text("{}\n")
    return tmp_path / "some.jsonl"


def test_a_sheet_is_drawn_and_labelled_as_was_said(
    reach: Any, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time", lambda: 1e9 + 50)
    said = ["--budget", 9, "--days", 0.0001, "--model", "m", "--tag", "a=b=c", "--floor", 0.5, "--seed", 3]
    sample = ["sample", "--log", log, "--out", tmp_path / "sheet.jsonl"]
    given, named = reach("metaprobe.monitoring.sampling.draw_sheet", *sample, *said)
    assert given[1] == 9
    since = pytest.approx(1e9 + 50 - 8.64, rel=0, abs=0.01)
    chosen = {"model": "m", "checkpoint": None, "tags": {"a": "b=c"}}
    assert named == {"since": since, **chosen, "floor": 0.5, "seed": 3}
    _, named = reach("metaprobe.monitoring.sampling.draw_sheet", *sample, "--since", "2025-11-30")
    assert named == {"since": NOVEMBER, **chosen, "model": None, "tags": {}, "floor": 0.25, "seed": None}
    monkeypatch.undo()
    page = ["sample", "--log", log, "--budget", 4, "--page", "--port", 8123, "--who", "ada"]
    given, named = reach("metaprobe.serving.labelling.page.label_on_page", *page)
    assert len(given[1]) == 4
    assert (named["who"], named["port"]) == ("ada", 8123)


def test_a_log_is_read_from_the_day_and_for_the_model_that_were_named(reach: Any, log: Path, tmp_path: Path) -> None:
    said = ["--since", "2025-11-30", "--model", "m"]
    _, named = reach("metaprobe.monitoring.log.ScoreLog.columns", "estimate", "--log", log, *said)
    assert named == {"since": NOVEMBER, "model": "m", "checkpoint": None, "ids": False}
    given, named = reach("metaprobe.monitoring.estimates.estimate_log", "estimate", "--log", log, "--by", "week")
    assert (len(given[0]), named["by"], named["group"]) == (40, "week", None)
    said = ["--state", tmp_path / "s.json", "--model", "m", "--within", "hour", "--batch", 4]
    given, named = reach("metaprobe.monitoring.drift_of_log.open_watch", "drift", "--log", log, *said)
    assert (given, named) == ((tmp_path / "s.json",), {"model": "m", "checkpoint": None, "within": "hour", "batch": 4})


def test_old_answers_are_moved_and_taken_away_by_age(reach: Any, log: Path, runs: Path) -> None:
    for more, sure in (((), False), (("--yes",), True)):
        said = ["log", "prune", "--log", log, "--older-than", 2.5, *more]
        assert reach("metaprobe.monitoring.log.ScoreLog.prune", *said) == ((2.5,), {"sure": sure})
    said = ["log", "rotate", "--log", log, "--older-than", 0, "--out", runs]
    given, named = reach("metaprobe.monitoring.log.ScoreLog.rotate", *said)
    assert (given, named) == ((runs,), {"days": 0.0})
    said = ["log", "delete", "r1", "--log", log, "--store", runs]
    given, named = reach("metaprobe.monitoring.log.ScoreLog.delete_all", *said)
    assert (given, named) == ((("r1",),), {"store": runs})


@pytest.mark.parametrize(
    ("command", "function", "kind", "said", "expected"),
    [
        (
            "quality",
            "metaprobe.training.recipes.quality.train_quality",
            QualityOptions,
            "--target critical --target correct --stage answer --agent a --label-source judge --raw-graph "
            "--dask tcp://x:1 --folds 3 --seed 4",
            {
                "target": ("critical", "correct"),
                "stage": "answer",
                "agent": "a",
                "label_source": "judge",
                "raw_graph": True,
                "dask": "tcp://x:1",
                "folds": 3,
                "seed": 4,
            },
        ),
        (
            "quality",
            "metaprobe.training.recipes.quality.train_quality",
            QualityOptions,
            "--new-tasks",
            {"new_tasks": True, "raw_graph": False, "dask": None, "folds": 5, "seed": 0},
        ),
        (
            "hidden",
            "metaprobe.training.recipes.hidden.train_hidden",
            HiddenOptions,
            "--target level --when before --probe ridge --layers every:2 --position prompt_last --states-of m "
            "--stage s --agent a --folds 3 --seed 4",
            {
                "target": "level",
                "when": "before",
                "probe": "ridge",
                "layers": "every:2",
                "position": ("prompt_last",),
                "states_of": "m",
                "stage": "s",
                "agent": "a",
                "folds": 3,
                "seed": 4,
            },
        ),
        (
            "blend",
            "metaprobe.training.recipes.blend.train_blend",
            BlendOptions,
            "--target t --layers 8,16 --stage s --agent a --seed 4",
            {"target": "t", "layers": "8,16", "stage": "s", "agent": "a", "seed": 4},
        ),
    ],
)
def test_what_training_is_told_is_what_was_typed(
    command: str, function: str, kind: type, said: str, expected: dict[str, Any], reach: Any, runs: Path, tmp_path: Path
) -> None:
    given, _ = reach(function, "train", command, runs, "--out", tmp_path / "c", *said.split())
    stores, options = given
    assert stores == (runs,)
    assert isinstance(options, kind)
    assert {name: getattr(options, name) for name in expected} == expected
    assert options.out == tmp_path / "c"  # type: ignore[attr-defined]
    assert options.command == "metaprobe train --seed 4"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("command", "function", "kind"),
    [
        ("gate", "metaprobe.training.recipes.gate.train_gate", GateOptions),
        ("adapter", "metaprobe.training.recipes.adapter.train_adapter", AdapterOptions),
        ("router", "metaprobe.training.router.train.train_router", RouterOptions),
    ],
)
def test_seeds_and_folds_reach_every_training(
    command: str, function: str, kind: type, reach: Any, runs: Path, tmp_path: Path
) -> None:
    given, _ = reach(function, "train", command, runs, "--out", tmp_path / "c", "--seed", 7)
    options = next(one for one in given if isinstance(one, kind))
    assert (options.seed, options.out) == (7, tmp_path / "c")  # type: ignore[attr-defined]


def test_a_choice_is_learned_with_its_seed_and_folds(reach: Any, runs: Path, tmp_path: Path) -> None:
    said = ["train", "choice", runs, "--out", tmp_path / "c", "--seed", 7, "--folds", 3]
    given, named = reach("metaprobe.training.ask_again.train.train_choice", *said)
    assert given == (tmp_path / "c", (runs,))
    assert (named["seed"], named["folds"]) == (7, 3)
    assert named["command"] == "metaprobe train --seed 4"


def test_a_comparison_is_of_the_target_stage_and_files_that_were_named(
    reach: Any, runs: Path, file: Path, tmp_path: Path
) -> None:
    said = ["--target", "t", "--scores", file, "--stage", "s", "--agent", "a", "--folds", 3, "--seed", 4]
    name = "metaprobe.training.comparison.compare"
    given, _ = reach(name, "compare", runs, "--out", tmp_path / "r", *said)
    options = given[1]
    assert isinstance(options, CompareOptions)
    found = (options.target, options.scores, options.stage, options.agent, options.folds, options.seed)
    assert found == ("t", (file,), "s", "a", 3, 4)


def test_adapting_and_recalibrating_are_told_the_labels_and_the_seed(
    reach: Any, log: Path, file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "c"
    name = "metaprobe.training.rescale.adapt_quality"
    given, named = reach(name, "adapt", "bundled:quality", file, "--out", out, "--seed", 7)
    assert (given, named["out"], named["seed"]) == (("bundled:quality", (file,)), out, 7)
    name = "metaprobe.monitoring.labelled.labelled_of_log"
    said = ["recalibrate", "bundled:quality", "--log", log, "--out", out, "--model", "m", "--since", "2025-11-30"]
    _, named = reach(name, *said)
    assert (named["model"], named["since"]) == ("m", NOVEMBER)


def test_retraining_is_told_how_much_to_hold_back_and_what_the_log_holds(
    reach: Any, log: Path, runs: Path, tmp_path: Path
) -> None:
    said = ["--hold-back", 0.5, "--logprobs-mode", "raw", "--folds", 3, "--seed", 4, "--model", "m"]
    name = "metaprobe.training.recipes.retrain.retrain_quality"
    given, named = reach(name, "retrain", runs, "--log", log, "--out", tmp_path / "c", *said)
    assert named == {"model": "m", "since": None, "held_back": 0.5, "logprobs_mode": "raw"}
    assert (given[0], given[2].folds, given[2].seed, given[2].out) == ((runs,), 3, 4, tmp_path / "c")


def test_extraction_is_told_by_whom_what_and_how_much_at_once(reach: Any, runs: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    said = ["--stage", "s", "--agent", "a", "--batch-size", 5]
    states = ["--layers", "0,8", "--position", "answer_last", "--every-token", "--shard-calls", 9, "--other-model"]
    name = "metaprobe.collecting.extract.launch_extract"
    given, named = reach(name, "extract", runs, "--llm", "m", "--via", "vllm", *states, *said)
    del named["watch"]
    shared = {"stage": "s", "agent": "a", "batch_size": 5}
    of_states = {"layers": "0,8", "positions": ("answer_last",), "every_token": True, "shard_calls": 9}
    assert (given, named) == ((runs, "m"), {**shared, **of_states, "other_model": True, "via": "vllm"})
    name = "metaprobe.collecting.reread.launch_reread"
    words = ["extract", runs, "--logprobs", "m", "--out", tmp_path / "o", "--top-logprobs", 4, *said]
    given, named = reach(name, *words)
    del named["watch"]
    assert (given, named) == ((runs, "m", tmp_path / "o"), {**shared, "top_logprobs": 4})


def test_an_import_is_told_its_format_and_what_to_do_with_bad_lines(reach: Any, file: Path, tmp_path: Path) -> None:
    name = "metaprobe.records.import_store.import_file"
    said = ["--from", "openai-batch", "--correct", "exact", "--requests", file, "--skip-bad", "--bad", tmp_path / "b"]
    given, named = reach(name, "import", file, "--out", tmp_path / "o", *said)
    assert (given[0], given[1].path) == (file, tmp_path / "o")
    kept = {key: named[key] for key in ("form", "correct", "requests", "on_error", "bad_lines", "stated")}
    assert kept == {
        "form": "openai-batch",
        "correct": "exact",
        "requests": file,
        "on_error": "skip",
        "bad_lines": tmp_path / "b",
        "stated": None,
    }
    _, named = reach(name, "import", file, "--out", tmp_path / "o", "--stated-only")
    assert (named["form"], named["on_error"], named["stated"].__name__) == ("auto", "stop", "parse_named_confidence")
    name = "metaprobe.records.importer.explain"
    given, named = reach(name, "import", file, "--explain", "--from", "inspect", "--correct", "exact")
    assert (given, named) == ((file, "inspect"), {"stated": None, "correct": "exact", "requests": None, "plain": False})


def test_outcomes_are_joined_with_the_signals_and_prices_that_were_named(
    reach: Any, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metaprobe.collecting.joining.read_prices", lambda path: {"read": path}, raising=False)
    source = "metaprobe.probes.source.SignalSource.load"
    asked: list[Any] = []
    monkeypatch.setattr(source, lambda signals: asked.append(tuple(signals)) or "source")
    said = ["outcomes", file, "--out", tmp_path / "o.jsonl", "--signal", "confidence=bundled:quality"]
    given, named = reach("metaprobe.collecting.joining.join_outcomes", *said)
    assert given == ((file,),)
    assert (asked, named["signals"], named["prices"]) == ([("confidence=bundled:quality",)], "source", None)


def test_the_server_is_told_every_limit(reach: Any) -> None:
    numbers = {"timeout": 9.5, "max-concurrency": 7, "max-connections": 8, "max-scored-tokens": 99, "grace": 3}
    numbers |= {"header-timeout": 1.5, "body-timeout": 2.5, "send-timeout": 3.5, "workers": 2}
    words = [word for name, value in numbers.items() for word in (f"--{name}", value)]
    name = "metaprobe.serving.http.run_server.serve"
    words += ["--on-mismatch", "refuse", "--otel"]
    given, _ = reach(name, "serve", "bundled:quality", "m=bundled:critical", *words)
    [settings] = given
    assert isinstance(settings, Settings)
    assert (settings.checkpoint, settings.more_checkpoints) == ("bundled:quality", ("m=bundled:critical",))
    seconds = {"timeout", "header-timeout", "body-timeout", "send-timeout", "grace"}
    found = {name: getattr(settings, name.replace("-", "_") + "_s" * (name in seconds)) for name in numbers}
    assert found == numbers
    assert (settings.on_mismatch, settings.otel) == ("refuse", True)


def test_the_demo_hands_its_size_to_collecting_and_its_folds_to_training(
    reach: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = ["--out", tmp_path / "d", "--limit", 9, "--batch-size", 3, "--folds", 3, "--seed", 4]
    given, named = reach("metaprobe.demo.collect_demo", "demo", *out)
    assert given == (tmp_path / "d",)
    assert (named["limit"], named["batch_size"], named["model"]) == (9, 3, "smollm2-135m")

    def absent() -> None:
        raise Reached

    monkeypatch.setattr("metaprobe.training.comparison.require_report", absent)
    done = CliRunner().invoke(main, ["demo", "--out", str(tmp_path / "d")])
    assert isinstance(done.exception, Reached)
    assert not (tmp_path / "d").exists(), "what the report needs is looked for before anything is collected"


def test_a_score_names_run_digest_and_what_to_do_with_other_models(reach: Any, file: Path) -> None:
    name = "metaprobe.probes.quality.QualityPredictor.load"
    module, _, attribute = name.rpartition(".")
    assert module
    assert attribute == "load"
    from metaprobe.probes.quality import QualityPredictor

    def load(*given: Any, **named: Any) -> None:
        assert given == ("bundled:quality",)
        assert named == {"sha256": "0" * 64, "run": "m|t|v", "on_mismatch": "ignore"}
        raise Reached

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(QualityPredictor, "load", load)
        said = ["--sha256", "0" * 64, "--on-mismatch", "ignore", "--run", "m|t|v"]
        done = CliRunner().invoke(main, ["score", "bundled:quality", str(file), *said])
    assert isinstance(done.exception, Reached), done.output
