"""Small promises of the commands: what is typed is used, what is said goes where programs do not read it."""

import inspect
import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

import metaprobe
from metaprobe.checkpoints import FlagOptions
from metaprobe.cli import main
from metaprobe.monitoring.entry import Entry
from metaprobe.monitoring.log import ScoreLog
from metaprobe.monitoring_cli import feedback, sample
from metaprobe.progress import Lines, StepTimes, progress_bar
from metaprobe.terminal import Moment
from metaprobe.training.options import GateOptions, HiddenOptions, QualityOptions, ReplaceOptions, RouterOptions


class Reached(Exception):
    """Ends a command where its work would begin."""


@pytest.fixture
def where(tmp_path: Path) -> Path:
    path = tmp_path / "log.sqlite"
    with ScoreLog.open(path) as log:
        for number in range(4):
            log.write(Entry(request_id=f"r{number}", time=1000.0 + number, model="m", checkpoint="c" * 64, score=0.5))
    return path


def run(*words: object) -> Result:
    return CliRunner().invoke(main, list(map(str, words)))


def caught(monkeypatch: pytest.MonkeyPatch, name: str) -> Callable[..., tuple[tuple[Any, ...], dict[str, Any]]]:
    """Runs a command up to a call of the named function, and returns that call's arguments."""
    given: list[Any] = []

    def stand_in(*args: Any, **named: Any) -> None:
        given.extend((args, named))
        raise Reached

    monkeypatch.setattr(name, stand_in)

    def until(*words: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
        done = run(*words)
        assert isinstance(done.exception, Reached), done.output
        return given[0], given[1]

    return until


def labels(path: Path, *ids: str) -> Path:
    path.write_text("".join(json.dumps({"request_id": one, "label": 1}) + "\n" for one in ids), encoding="utf-8")
    return path


def test_feedback_reads_the_file_by_the_name_and_the_id_that_were_typed(
    monkeypatch: pytest.MonkeyPatch, where: Path, tmp_path: Path
) -> None:
    file = labels(tmp_path / "labels.jsonl", "r0")
    until = caught(monkeypatch, "metaprobe.monitoring.label_files.read_label_file")
    options = {option.name: option.opts[0] for option in feedback.params if isinstance(option, click.Option)}
    said = (
        options["name"],
        "helpful",
        options["id_key"],
        "ticket",
        options["maps"],
        "a=wrong",
        options["maps"],
        "b=wrong",
    )
    given, named = until("feedback", file, "--log", where, *said)
    assert given[0] == file
    assert named | {"say": None} == {"name": "helpful", "id_key": "ticket", "value_map": "a=wrong,b=wrong", "say": None}


def test_labels_of_unknown_answers_are_told_beside_the_output_and_known_ones_are_not(
    where: Path, tmp_path: Path
) -> None:
    some = run("feedback", labels(tmp_path / "a.jsonl", "r0", "later"), "--log", where)
    assert "1 are of answers that the log does not hold" in some.stderr
    assert some.stdout == "stored 2 labels: 2 right, 0 wrong, 0 neither\n"
    assert run("feedback", labels(tmp_path / "b.jsonl", "r1"), "--log", where).stderr == "lines: 1 label: 1 is right\n"


@pytest.mark.parametrize(
    "words", [("feedback", "FILE"), ("sample", "--page"), ("estimate",), ("drift", "--state", "s")]
)
def test_a_command_on_a_log_asks_for_the_log(words: tuple[str, ...], tmp_path: Path) -> None:
    file = str(labels(tmp_path / "a.jsonl", "r0"))
    done = run(*(file if word == "FILE" else word for word in words))
    assert done.exit_code == 2
    assert "Missing option '--log'" in done.stderr


def test_an_estimate_of_nothing_says_so_where_no_program_reads_it(where: Path) -> None:
    done = run("estimate", "--json", "--log", where, "--model", "another")
    assert done.stderr == "the log holds no answers of that time, model and checkpoint\n"
    assert all(json.loads(line) for line in done.stdout.splitlines())


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="this system cannot change its time zone")
def test_a_moment_is_in_utc_wherever_the_command_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert Moment().convert("2025-11-30", None, None) == 1_764_460_800.0
    finally:
        monkeypatch.undo()
        time.tzset()


EVERYTHING = {"since": None, "model": None, "checkpoint": None, "tags": {}, "floor": 0.25, "seed": None}


def test_days_are_of_24_hours_and_every_choice_reaches_the_draw(monkeypatch: pytest.MonkeyPatch, where: Path) -> None:
    monkeypatch.setattr("metaprobe.monitoring_cli.time.time", lambda: 1_000_000.0)
    until = caught(monkeypatch, "metaprobe.monitoring.sampling.draw_sheet")
    words = ("--budget", 7, "--days", 2, "--model", "m", "--tag", "a=b", "--floor", 0.5, "--seed", 3, "--page")
    given, named = until("sample", "--log", where, *words)
    assert given[1] == 7
    assert named == {
        **EVERYTHING,
        "since": 1_000_000.0 - 172_800,
        "model": "m",
        "tags": {"a": "b"},
        "floor": 0.5,
        "seed": 3,
    }


def test_without_days_the_draw_is_of_the_whole_log_and_another_each_time(
    monkeypatch: pytest.MonkeyPatch, where: Path
) -> None:
    _, named = caught(monkeypatch, "metaprobe.monitoring.sampling.draw_sheet")("sample", "--log", where, "--page")
    assert named == EVERYTHING
    assert next(option for option in sample.params if option.name == "budget").default == 50


def test_the_threshold_follows_at_the_rate_and_step_that_were_typed(
    monkeypatch: pytest.MonkeyPatch, where: Path
) -> None:
    until = caught(monkeypatch, "metaprobe.monitoring.labelled.OnlineThreshold")
    given, named = until("threshold", "bundled:quality", "--log", where, "--rate", 0.3, "--step", 0.5)
    assert 0 <= given[0] <= 1
    assert named == {"rate": 0.3, "step": 0.5}


def test_another_digest_than_the_authors_is_refused() -> None:
    done = run("verify", "bundled:quality", "--sha256", "0" * 64)
    assert done.exit_code != 0
    assert "0" * 12 in done.output


def test_the_steps_of_training_again_are_shown(monkeypatch: pytest.MonkeyPatch, where: Path, tmp_path: Path) -> None:
    until = caught(monkeypatch, "metaprobe.training.recipes.retrain.retrain_quality")
    words = ("--log", where, "--out", tmp_path / "new", "--folds", 3, "--seed", 5, "--hold-back", 0.4)
    given, named = until("retrain", "recorded/smollm2-metacog-eval", *words)
    options = given[2]
    assert isinstance(options.on_step.__self__, StepTimes)
    assert (options.folds, options.seed, options.out) == (3, 5, tmp_path / "new")
    assert (named["held_back"], named["since"], named["model"]) == (0.4, None, None)


@pytest.mark.parametrize(
    ("ends", "done", "total", "expected"),
    [(True, 0, None, 0), (True, 3, None, 1), (True, 0, 5, 1), (True, 3, 5, 1), (False, 3, 5, 0)],
)
def test_a_log_has_a_last_line_of_what_took_a_moment_only_where_that_is_asked_and_something_was_done(
    ends: bool, done: int, total: int | None, expected: int
) -> None:
    written = io.StringIO()
    bar = Lines(ends=ends, desc="import", total=total, file=written)
    bar.n = done
    bar.close()
    bar.close()
    assert len(written.getvalue().splitlines()) == expected
    assert bar.disable is True


def test_a_bar_says_what_is_done_in_its_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr("sys.stderr", written)
    with progress_bar("import", "B", 3_000_000, ends=True, scaled=True) as bar:
        bar.update(1_500_000)
    assert "import" in written.getvalue()
    assert "1.50M" in written.getvalue()


def test_bad_lines_that_are_not_listed_are_counted_beside_the_output(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text("no JSON\n" * 40, encoding="utf-8")
    done = run("import", file, "--out", tmp_path / "store", "--bad", tmp_path / "bad.jsonl")
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["skipped"] == 40, done.stderr
    assert "... and 20 more bad lines" in done.stderr
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("function", "options"),
    [
        (metaprobe.train_quality, QualityOptions),
        (metaprobe.train_hidden, HiddenOptions),
        (metaprobe.train_gate, GateOptions),
        (metaprobe.train_router, RouterOptions),
    ],
)
def test_a_function_shows_the_fields_of_its_options_as_its_own(function: Any, options: type) -> None:
    shown = list(inspect.signature(function).parameters.values())
    assert shown[0].kind is inspect.Parameter.POSITIONAL_ONLY
    assert [one.name for one in shown[1:]] == list(inspect.signature(options).parameters)
    assert all(one.kind is inspect.Parameter.KEYWORD_ONLY for one in shown[1:])


def test_recalibrating_checks_the_digest_and_keeps_what_was_typed(
    monkeypatch: pytest.MonkeyPatch, where: Path, tmp_path: Path
) -> None:
    digest = metaprobe.load("bundled:quality").checkpoint.digest
    monkeypatch.setattr("sys.argv", ["metaprobe", "recalibrate", "--seed", "4"])
    monkeypatch.setattr("metaprobe.monitoring.labelled.labelled_of_log", lambda log, **which: [])
    until = caught(monkeypatch, "metaprobe.training.rescale.recalibrate_quality")
    words = ("--log", where, "--out", tmp_path / "new", "--sha256", digest, "--seed", 4, "--catch", 0.8, "--replace")
    _, named = until("recalibrate", "bundled:quality", *words)
    command = "metaprobe recalibrate --seed 4"
    assert named.pop("flags") == FlagOptions(catch=0.8)
    assert named.pop("writing") == ReplaceOptions(replace=True, log=str(where))
    assert named == {"out": tmp_path / "new", "sha256": digest, "seed": 4, "command": command}
