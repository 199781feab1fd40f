"""`metaprobe advise` says what a log can support, and names only commands that exist and read what they are given."""

import json
import shlex
import shutil
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

from metaprobe.cli import main
from metaprobe.probes.quality import QualityPredictor
from metaprobe.production.monitoring.entry import Entry
from metaprobe.production.monitoring.log import ScoreLog
from metaprobe.records.errors import RecordError
from metaprobe.training.advise import IMPORTED, MIN_OUTCOME_GROUPS, SIGNAL_TITLES, TRAINING_PAYS, Advice, advise
from metaprobe.training.panel import fitted_panel, labelled_panels, played_asks
from research import which_signal

ROOT = Path(__file__).parent.parent
LOGPROBS = {"content": [{"token": "four", "logprob": -0.3}, {"token": "!", "logprob": -0.1}]}


DECIDED = {"model": "luna", "answers": [{"type": "predicate", "name": "right", "probability": 0.8}]}


def line(
    i: int,
    *,
    label: int | None = None,
    numbers: bool = True,
    group: str = "",
    text: str = "four!",
    judged: bool = False,
    asked: int | None = None,
) -> str:
    """A line of a log. `asked`: number in the question; by default `i`."""
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    told = {
        "id": f"q{i}",
        "group": group or f"q{i}",
        "model": "smollm2-135m",
        "messages": [{"role": "user", "content": f"What is {i if asked is None else asked} + 1?"}],
        "response": {"choices": [choice | ({"logprobs": LOGPROBS} if numbers else {})]},
    }
    told |= {"decisions": DECIDED} if judged else {}
    return json.dumps(told | ({} if label is None else {"labels": {"correct": label}}))


LOGS = {
    "numbers, no labels": [line(i) for i in range(30)],
    "numbers, enough labels to adapt": [line(i, label=int(i < 4)) for i in range(30)],
    "numbers, too few labels to train": [line(i, label=i % 2) for i in range(199)],
    "numbers, enough labels to train": [line(i, label=i % 2) for i in range(200)],
    "several answers": [line(i, label=i % 3 % 2, group=f"g{i // 3}", asked=i // 3) for i in range(60)],
    "text alone": [line(i, label=i % 2, numbers=False) for i in range(30)],
    "judged": [line(i, label=i % 2, judged=True) for i in range(30)],
    "stated": [line(i, label=i % 2, numbers=False, text="four. Confidence: 0.9") for i in range(30)],
}
SUPPORTED = {
    "numbers, no labels": {"log-probabilities", "weights", "text"},
    "numbers, enough labels to adapt": {"log-probabilities", "weights", "text"},
    "numbers, too few labels to train": {"log-probabilities", "weights", "text"},
    "numbers, enough labels to train": {"log-probabilities", "weights", "text"},
    "several answers": {"log-probabilities", "samples", "weights", "text"},
    "text alone": {"weights", "text"},
    "judged": {"log-probabilities", "weights", "text", "decisions"},
    "stated": {"stated", "weights", "text"},
}


def parse(words: list[str]) -> None:
    """Parses a command with its real arguments, and does not run it. Raises `UsageError` where it cannot."""
    at: click.Command = main
    while isinstance(at, click.Group):
        _, found, words = at.resolve_command(click.Context(at), words)
        assert found is not None
        at = found
    at.make_context(at.name, words)


@pytest.mark.parametrize("name", LOGS)
def test_a_log_supports_what_it_holds_and_every_command_parses(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path("log file.jsonl")
    file.write_text("\n".join(LOGS[name]), encoding="utf-8")
    told = advise(file)
    assert {one.signal for one in told.signals if one.supported} == SUPPORTED[name]
    assert [one.signal for one in told.signals] == list(SIGNAL_TITLES)
    for one in told.signals:
        for command in one.commands:
            program, *words = shlex.split(command)
            assert program == "metaprobe"
            parse(words)
            if words[0] == "import":  # is really run: the commands after it read its store
                shutil.rmtree(IMPORTED, ignore_errors=True)
                assert CliRunner().invoke(main, words).exit_code == 0, command
            elif words[0] == "extract" and "--out" in words:  # the commands after it read this folder
                Path(words[-1]).mkdir(parents=True, exist_ok=True)
            elif "agreement" in words:  # as this one reads the checkpoint that it makes
                shutil.copytree(QualityPredictor.load().checkpoint.path, words[-1])


def test_agreement_is_advised_for_samples_and_joined_with_few_labels(tmp_path: Path) -> None:
    def commands(labelled: int) -> list[str]:
        file = tmp_path / f"log-{labelled}.jsonl"
        asked = [
            json.loads(line(i, label=i % 2 if i < labelled else None)) | {"question_id": i // 2, "group": None}
            for i in range(80)
        ]
        file.write_text("\n".join(map(json.dumps, asked)), encoding="utf-8")
        [samples] = [one for one in advise(file).signals if one.signal == "samples"]
        return [command for command in samples.commands if "taught" in command]

    assert [command.split()[1:3] for command in commands(0)] == [["train", "quality"]]
    assert [command.split()[1:3] for command in commands(40)] == [["train", "quality"], ["adapt", "out/taught"]]


def test_the_first_commands_follow_the_labels(tmp_path: Path) -> None:
    def first(name: str) -> list[str]:
        file = tmp_path / "log.jsonl"
        file.write_text("\n".join(LOGS[name]), encoding="utf-8")
        [numbers] = [one for one in advise(file).signals if one.signal == "log-probabilities"]
        return [" ".join(command.split()[1:3]) for command in numbers.commands]

    log = str(tmp_path / "log.jsonl")
    assert first("numbers, no labels") == ["score bundled:quality", f"import {log}", f"label {IMPORTED}"]
    assert first("numbers, enough labels to adapt") == ["adapt bundled:quality"]
    assert first("numbers, too few labels to train") == ["adapt bundled:quality"]
    assert first("numbers, enough labels to train") == ["train quality"]
    assert first("text alone") == []


def test_a_probe_of_answers_without_numbers_reads_them_before_it_is_trained(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text("\n".join(LOGS["text alone"]), encoding="utf-8")
    [weights] = [one for one in advise(file).signals if one.signal == "weights"]
    assert [" ".join(command.split()[1:5]) for command in weights.commands[1:]] == [
        f"extract {IMPORTED} --logprobs smollm2-135m",
        "extract out/read --llm smollm2-135m",
        "train hidden out/read --when",
    ]


@pytest.mark.parametrize("model", ["gpt-4o", "claude-opus-4", "openai/gpt-4o-mini", "Qwen/Qwen3-8B", "local"])
def test_weights_are_advised_only_where_they_are_known_to_be_at_hand(model: str, tmp_path: Path) -> None:
    def advice(name: str) -> Advice:
        file = tmp_path / "log.jsonl"
        lines = [json.loads(one) | {"model": name} for one in LOGS["numbers, enough labels to train"]]
        file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        [weights] = [one for one in advise(file).signals if one.signal == "weights"]
        return weights

    told = advice(model)
    assert (told.supported, told.commands) == (False, ())
    assert model in told.why
    assert "if you have" in told.why
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert advice(str(folder)).supported
    assert advice("smollm2-135m").supported


def test_training_is_advised_from_where_it_was_measured_to_keep_up_with_adapting(tmp_path: Path) -> None:
    assert which_signal.training_pays() == TRAINING_PAYS
    file = tmp_path / "log.jsonl"
    file.write_text("\n".join(LOGS["numbers, too few labels to train"]), encoding="utf-8")
    shown = CliRunner().invoke(main, ["advise", str(file)]).stdout
    assert "199 are labelled: adapt, which was better than training below 200 labels" in " ".join(shown.split())


def test_a_store_and_a_log_of_another_program_are_read_and_what_is_broken_is_counted(tmp_path: Path) -> None:
    store = advise(ROOT / "recorded" / "gsm8k-samples")
    [samples] = [one for one in store.signals if one.signal == "samples"]
    assert samples.why == "300 questions have several answers"
    assert "--sampled answer" in samples.commands[0]
    file = tmp_path / "log.jsonl"
    file.write_text("\n".join([*LOGS["text alone"], "{broken"]), encoding="utf-8")
    shown = CliRunner().invoke(main, ["advise", str(file)])
    assert "30 answers to 30 questions" in shown.stdout
    assert "1 more cannot be read:\n  1 x bad: not one whole JSON object; the first: " in shown.stdout
    assert json.loads(CliRunner().invoke(main, ["advise", str(file), "--json"]).stdout)["left_out"] == 1
    graded = CliRunner().invoke(main, ["advise", str(ROOT / "tests" / "logs" / "inspect" / "graded.json")]).stdout
    assert "6 x labelled by graded\n  2 x no label: graded says neither right nor wrong" in graded
    file.write_text("{broken\n", encoding="utf-8")
    with pytest.raises(RecordError, match=r"1 of 1 lines of .* more than half.*log\.jsonl:1: not JSON"):
        advise(file)


def test_the_page_has_a_row_for_each_signal_and_says_what_was_not_measured() -> None:
    page = which_signal.PAGE.read_text(encoding="utf-8")
    rows = {
        name: next(row for row in page.splitlines() if row.startswith(f"| {SIGNAL_TITLES[name]} |"))
        for name in SIGNAL_TITLES
    }
    latency, price = rows["decisions"].split(" | ")[2:4]
    assert (latency, price) == ("not measured", "not measured")


def test_lines_of_question_and_answer_are_advised_to_learn_from_words(tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    lines = [
        {"question": f"Is {n} even?", "answer": f"It is {n}.", "labels": {"correct": n % 2}, "group": f"g{n}"}
        for n in range(40)
    ]
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    advised = {one.signal: one for one in advise(file).signals}
    assert advised["text"].supported
    assert "train text" in advised["text"].commands[-1]
    assert not advised["log-probabilities"].supported


@pytest.mark.parametrize("recipe", ["router", "panel"])
def test_outcomes_of_agents_are_named_with_the_training_that_reads_them(recipe: str, tmp_path: Path) -> None:
    price = {"cost_usd": 0.01} if recipe == "router" else {}
    lines = [
        {"id": f"q{n}", "question": "?", "agents": {a: {"answer": "4", "correct": n % 2, **price} for a in ("x", "y")}}
        for n in range(60)
    ]
    file = tmp_path / "asked agents.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    told = advise(file)
    assert (told.what, told.answers, told.questions, told.right, told.wrong) == ("outcomes of agents", 120, 60, 30, 30)
    [outcomes] = told.signals
    assert outcomes.commands == (f"metaprobe train {recipe} '{file}' --out out/{recipe}",)
    known = 60 if price else 0
    assert f"2 agents (x, y), of which all answered 60 of 60 questions, {known} at a known price" in outcomes.why
    parse(shlex.split(outcomes.commands[0])[1:])
    refused = CliRunner().invoke(main, ["import", str(file), "--out", str(tmp_path / "runs")])
    assert refused.exit_code == 1
    assert "`metaprobe train router` reads outcomes as they are" in refused.output
    file.write_text("\n".join(map(json.dumps, lines[:40])), encoding="utf-8")
    assert not advise(file).signals[0].commands
    assert MIN_OUTCOME_GROUPS == {"router": played_asks.FEWEST_ASKED, "panel": fitted_panel.MIN_PANEL_GROUPS}


def test_a_question_id_names_one_question_to_advice_import_and_panel_alike(tmp_path: Path) -> None:
    file, runs = tmp_path / "flat.jsonl", tmp_path / "runs"
    lines = [
        json.loads(line(i, label=i % 3 % 2, numbers=False, text=f"It is {i % 3}"))
        | {"question_id": i // 8, "group": None}
        for i in range(240)
    ]
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    done = CliRunner().invoke(main, ["import", str(file), "--out", str(runs), "--plain"])
    assert json.loads(done.stdout)["groups"] == 30
    for data in (file, runs):
        told = advise(data)
        assert (told.answers, told.questions) == (240, 30)
        [samples] = [one for one in told.signals if one.signal == "samples"]
        [command] = samples.commands
        assert command.startswith(f"metaprobe train panel {data}")
        panels = labelled_panels.panels_at(data)
        assert (len(panels), len(set(panels.groups)), panels.answer_class.shape[1]) == (30, 30, 8)


def test_unlabelled_lines_are_labelled_by_hand_and_adapted_by_the_advised_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("log.jsonl").write_text("\n".join(LOGS["numbers, no labels"]), encoding="utf-8")

    def run(command: str, *more: str) -> str:
        done = CliRunner().invoke(main, [*shlex.split(command)[1:], *more])
        assert done.exit_code == 0, done.output
        return done.stdout

    *_, imported, label = advise(Path("log.jsonl")).signals[0].commands
    run(imported)
    listed = [json.loads(one) for one in run(label).splitlines()]
    assert [(one["question"], one["answer"]) for one in listed[:2]] == [
        ("What is 0 + 1?", "four!"),
        ("What is 1 + 1?", "four!"),
    ]
    filled = [json.dumps(one | {"correct": n % 2}) for n, one in enumerate(listed)]
    Path("labels.jsonl").write_text("\n".join(filled), encoding="utf-8")
    assert json.loads(run(label, "labels.jsonl")) == {"labels": 30, "new": 30}
    assert run(label) == ""
    labelled = advise(Path(IMPORTED))
    assert (labelled.labels, labelled.right, labelled.wrong) == ({"correct": 30}, 15, 15)
    run(labelled.signals[0].commands[-1])
    assert Path("out/mine/manifest.json").is_file()


@pytest.mark.parametrize("name", ["my labels.csv", "labels.jsonl"])
def test_a_file_of_labels_alone_is_named_as_labels_with_the_command_that_takes_them(name: str, tmp_path: Path) -> None:
    file, log = tmp_path / name, tmp_path / "scores.sqlite"
    rows = [f"q{n},{n % 2}" for n in range(4)]
    lines = [json.dumps({"id": f"q{n}", "correct": n % 2}) for n in range(4)]
    file.write_text("\n".join(["id,correct", *rows] if name.endswith("csv") else lines), encoding="utf-8")
    told = CliRunner().invoke(main, ["advise", str(file)])
    assert told.exit_code == 1
    assert 'expected the label in the line of its answer, as "correct" beside "response"' in told.output
    feedback = f"feedback {shlex.quote(str(file)) if name.endswith('csv') else 'FILE'} --log LOG"
    assert f"metaprobe {feedback}" in told.output
    assert "rename" not in told.output
    words = shlex.split(feedback.replace("FILE", str(file)).replace("LOG", str(log)))
    with ScoreLog.open(log) as opened:
        for n in range(4):
            opened.write(Entry(request_id=f"q{n}", time=0.0, model="m", checkpoint="c", score=0.5))
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output


def test_long_labelled_answers_are_advised_a_gate_that_the_command_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    right = [int(n % 7 < 5) for n in range(140)]

    def write(tokens: int) -> tuple[str, ...]:
        lines = [
            {"id": n, "answer": "a" * tokens, "tokens": ["a"] * tokens, "correct": good, "finish_reason": "stop"}
            | {"logprobs": draw.uniform(-2 + good, -0.1, tokens).tolist()}
            for n, good in enumerate(right)
        ]
        Path("long.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        return advise(Path("long.jsonl")).signals[0].commands

    assert not any("gate" in command for command in write(99))
    *_, gate = write(100)
    assert gate == "metaprobe train gate long.jsonl --out out/gate"
    done = CliRunner().invoke(main, shlex.split(gate)[1:])
    assert done.exit_code == 0, done.output
    assert Path("out/gate/manifest.json").is_file()


def test_answers_that_share_a_group_and_not_their_messages_are_no_samples(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text("\n".join(line(i, label=i % 2, group=f"g{i // 3}") for i in range(60)), encoding="utf-8")
    [samples] = [one for one in advise(file).signals if one.signal == "samples"]
    assert not samples.supported
    assert "question_id" in samples.why
