"""From the labels of a score log to P(success): labels weigh 1 / propensity in the fit and in the guard."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from logged_answers import WEEK_46
from test_commands import run

import metaprobe
from metaprobe.production.logged_outcomes import last_message, outcomes_of_log
from metaprobe.production.monitoring.entry import Entry
from metaprobe.production.monitoring.log import FeedbackLabel, ScoreLog
from metaprobe.records.errors import ImportFileError, RecordError
from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes, outcome_of_line, read_outcomes
from metaprobe.routing.success_estimator import SuccessEstimator
from metaprobe.training.recipes.train_success import train_success
from metaprobe.training.success_fit import label_counts, success_data
from metaprobe.training.success_options import SuccessOptions

ANSWERS = {"often": 2400, "seldom": 90}
DOUBTFUL_RIGHT, SURE_RIGHT = 0.4, 0.98
"""Shares of right answers among those with score 0.5 and with score 0.99. Nothing in the question tells them apart."""


def fill(log: ScoreLog, *, seed: int = 0, version: str = "v2", texts: bool = True, end: int = 0) -> dict[str, float]:
    """Writes the answers of both models in a random order, and returns which are right, by request id."""
    rng = np.random.default_rng(seed)
    models = rng.permutation(np.repeat(list(ANSWERS), list(ANSWERS.values()))).tolist()
    truth = {}
    for i, model in enumerate(models):
        doubtful = bool(rng.integers(0, 2))
        name = f"{version}-{i}"
        truth[name] = float(rng.random() < (DOUBTFUL_RIGHT if doubtful else SURE_RIGHT))
        entry = Entry(
            request_id=name,
            time=WEEK_46 + 60.0 * (i + end),
            model=model,
            checkpoint="c" * 64,
            score=0.5 if doubtful else 0.99,
            tokens=7,
            cost_usd=0.001,
            latency_s=0.5,
            tags={"task": "faq", "version": version},
            question=f"system: Be brief.\n\nuser: question {i}" if texts else None,
        )
        assert log.write(entry)
    assert log.flush()
    return truth


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float], dict[str, Any]]:
    """A log whose labels were drawn by `sample`, the outcomes that came from it, and what was printed."""
    folder = tmp_path_factory.mktemp("loop")
    url = folder / "scores.sqlite"
    with ScoreLog.open(url) as log:
        truth = fill(log)
    assert run("sample", "--log", url, "--budget", 700, "--seed", 1, "--out", folder / "sheet.jsonl").exit_code == 0
    sheet = [json.loads(line) for line in (folder / "sheet.jsonl").read_text().splitlines()]
    filled = [{**row, "label": truth[row["request_id"]]} for row in sheet]
    filled[0]["label"] = "unsure"
    # Somebody complains of wrong answers that nobody drew: such labels would lower the rate.
    drawn = {row["request_id"] for row in sheet}
    wrong = [name for name, right in truth.items() if not right and name not in drawn][:60]
    filled += [{"request_id": name, "label": 0} for name in wrong]
    (folder / "labels.jsonl").write_text("".join(json.dumps(row) + "\n" for row in filled[:-1]))
    assert run("feedback", folder / "labels.jsonl", "--log", url).exit_code == 0
    done = run(
        "log",
        "outcomes",
        *("--log", url, "--out", folder / "learn.jsonl", "--held-out", folder / "held.jsonl"),
        *("--version-tag", "version"),
    )
    assert done.exit_code == 0, done.output
    return folder, truth, json.loads(done.stdout)


def trained(folder: Path, name: str, *, weighted: bool) -> Path:
    """Returns the estimator that the command trains on the log's outcomes, with their weights or without."""
    out, lines = folder / name, read_outcomes(folder / "learn.jsonl")
    if not out.exists():
        if not weighted:
            lines = [
                replace(one, agents={agent: replace(kept, label_propensity=None) for agent, kept in one.agents.items()})
                for one in lines
            ]
        QuestionOutcomes.write(folder / f"{name}.jsonl", lines)
        done = run("train", "success", folder / f"{name}.jsonl", "--out", out)
        assert done.exit_code == 0, done.output
    return out


def test_selective_labels_give_the_true_rate_with_their_weights_and_a_wrong_one_without(
    loop: tuple[Path, dict[str, float], dict[str, Any]],
) -> None:
    folder, truth, told = loop
    true_rate = float(np.mean(list(truth.values())))
    estimates = {}
    for weighted in (True, False):
        estimator = metaprobe.load(trained(folder, f"weighted-{weighted}", weighted=weighted))
        (one,) = estimator.estimate("question of today", ["often"])
        assert one.p is not None
        assert one.interval is not None
        estimates[weighted] = one
    assert abs(estimates[True].p - true_rate) < 0.05
    assert estimates[True].interval[0] < true_rate < estimates[True].interval[1]
    assert estimates[False].p < true_rate - 0.05
    assert abs(told["models"]["often"]["right"] - true_rate) < 0.05


def test_the_card_tells_the_weights_and_the_age_of_the_labels(
    loop: tuple[Path, dict[str, float], dict[str, Any]],
) -> None:
    folder, _, _ = loop
    estimator = SuccessEstimator.load(trained(folder, "weighted-True", weighted=True))
    card = (estimator.checkpoint.path / "README.md").read_text()
    assert "weigh 1 / chance" in card
    lines = read_outcomes(folder / "learn.jsonl")
    assert estimator.checkpoint.learned_until == max(one.answered or 0 for one in lines)
    assert estimator.labels_until["often"] == "2025-11-11"
    # Unequal weights tell less than as many equal ones.
    labels = sum("often" in one.agents for one in lines)
    (one,) = estimator.estimate("question", ["often"])
    assert 0.5 * labels < one.coverage < 0.95 * labels
    unweighted = SuccessEstimator.load(trained(folder, "weighted-False", weighted=False))
    assert "weigh" not in (unweighted.checkpoint.path / "README.md").read_text()


def test_what_is_left_out_is_counted_and_a_model_with_few_labels_stays_insufficient(
    loop: tuple[Path, dict[str, float], dict[str, Any]],
) -> None:
    folder, _, told = loop
    assert sorted(told["left_out"].values()) == [1, 59]
    assert any("not drawn" in reason for reason in told["left_out"])
    assert told["outcomes"] + told["held_out"] == 699
    assert told["models"]["often"]["version"] == "v2"
    lines = read_outcomes(folder / "learn.jsonl")
    assert {one.dimension for one in lines} == {"faq"}
    assert lines[0].question.startswith("question ")
    assert max(one.answered or 0 for one in lines) <= min(
        one.answered or 0 for one in read_outcomes(folder / "held.jsonl")
    )
    by_name = {
        one.candidate: one
        for one in metaprobe.load(trained(folder, "weighted-True", weighted=True)).estimate("question")
    }
    assert by_name["seldom"].evidence == "insufficient"
    assert "labels of equal weight" in by_name["seldom"].reason
    assert by_name["often"].evidence == "measured"


def test_the_guard_weighs_labels_too_and_leaves_out_what_was_learned(
    loop: tuple[Path, dict[str, float], dict[str, Any]],
) -> None:
    folder, _, _ = loop
    right, wrong = (trained(folder, f"weighted-{weighted}", weighted=weighted) for weighted in (True, False))
    promoted = run("promote", "--json", right, "--over", wrong, folder / "held.jsonl")
    assert promoted.exit_code == 0, promoted.output
    assert run("promote", wrong, "--over", right, folder / "held.jsonl").exit_code == 1
    # Without weights the guard would rather have the version that is wrong about all answers.
    bare = [
        replace(one, agents={name: replace(kept, label_propensity=None) for name, kept in one.agents.items()})
        for one in read_outcomes(folder / "held.jsonl")
    ]
    QuestionOutcomes.write(folder / "bare.jsonl", bare)
    assert run("promote", right, "--over", wrong, folder / "bare.jsonl").exit_code == 1
    # All outcomes in one file: the earlier ones do not decide.
    QuestionOutcomes.write(folder / "both.jsonl", [*read_outcomes(folder / "learn.jsonl"), *bare])
    both = json.loads(run("promote", "--json", right, "--over", wrong, folder / "both.jsonl").stdout)
    assert both["log_loss_gain"]["n"] == sum("often" in one.agents for one in bare)
    assert "left out" in both["reason"]
    early = run("promote", right, "--over", wrong, folder / "learn.jsonl")
    assert early.exit_code == 1
    assert "left out" in " ".join(early.output.split())


def test_answers_of_an_earlier_version_do_not_count(tmp_path: Path) -> None:
    with ScoreLog.open(tmp_path / "scores.sqlite") as log:
        for place, version in enumerate(("v1", "v2")):
            truth = fill(log, seed=place, version=version, end=10_000 * place)
            log.add_labels(FeedbackLabel(name, right) for name, right in truth.items())
        every = outcomes_of_log(log, model="seldom")
        newest = outcomes_of_log(log, model="seldom", version_tag="version")
    assert len(every.learned) == 180
    assert len(newest.learned) == 90
    assert newest.versions == {"seldom": "v2"}
    assert list(newest.left_out.values()) == [90]
    assert all(one.id.startswith("v2-") for one in newest.learned)
    # All answers were labelled, so nobody chose among them.
    assert {one.agents["seldom"].label_propensity for one in newest.learned} == {1.0}


def test_labels_that_nobody_drew_weigh_alike_with_a_warning(tmp_path: Path) -> None:
    url = tmp_path / "scores.sqlite"
    with ScoreLog.open(url) as log:
        truth = fill(log)
        log.add_labels(FeedbackLabel(name, right) for name, right in list(truth.items())[:200])
    done = run("log", "outcomes", "--log", url, "--out", tmp_path / "o.jsonl")
    assert done.exit_code == 0, done.output
    assert "no answer was drawn" in " ".join(done.stderr.split())
    lines = read_outcomes(tmp_path / "o.jsonl")
    assert {kept.label_propensity for one in lines for kept in one.agents.values()} == {None}


def test_a_log_without_texts_or_labels_gives_no_outcome_and_says_why(tmp_path: Path) -> None:
    url = tmp_path / "scores.sqlite"
    with ScoreLog.open(url) as log:
        truth = fill(log, texts=False)
        with pytest.raises(RecordError, match="none was labelled"):
            outcomes_of_log(log)
        log.add_labels(FeedbackLabel(name, right) for name, right in truth.items())
    done = run("log", "outcomes", "--log", url, "--out", tmp_path / "o.jsonl")
    assert done.exit_code == 1
    assert "2490 because the log holds no text" in " ".join(done.output.split())
    assert not (tmp_path / "o.jsonl").exists()


@pytest.mark.parametrize(
    ("logged", "last"),
    [
        ("What is 2 + 2?", "What is 2 + 2?"),
        ("system: Be brief.\n\nuser: What is 2 + 2?", "What is 2 + 2?"),
        ("user: a\n\nassistant: b\n\nuser: c\n\nd", "c\n\nd"),
        ("user: a\n\ntool: ", ""),
        ("Translate:\n\nuser: hello", "Translate:\n\nuser: hello"),
    ],
)
def test_the_last_message_of_a_logged_chat_is_the_question(logged: str, last: str) -> None:
    assert last_message(logged) == last


def test_a_propensity_of_a_label_is_read_back_and_one_that_is_none_is_refused(tmp_path: Path) -> None:
    one = QuestionOutcomes("q", "q", agents={"a": AgentOutcome(score=1.0, label_propensity=0.25)}, answered=1.7e9)
    QuestionOutcomes.write(tmp_path / "o.jsonl", [one])
    assert read_outcomes(tmp_path / "o.jsonl") == [one]
    for wrong in (0, 1.5, "1"):
        with pytest.raises(ImportFileError, match="label_propensity"):
            outcome_of_line({"id": "q", "agents": {"a": {"correct": 1, "label_propensity": wrong}}})
    with pytest.raises(ImportFileError, match="answered"):
        outcome_of_line({"id": "q", "agents": {"a": {"correct": 1}}, "answered": 1.7e12})


def test_words_are_learned_with_the_weights_of_their_labels(tmp_path: Path) -> None:
    """Right answers to "prove" were labelled seldom, wrong ones always: by weights such questions are easy."""
    rng, outcomes = np.random.default_rng(0), []
    for i in range(1500):
        hard = bool(rng.integers(0, 2))
        right = rng.random() < (0.9 if hard else 0.5)
        chance = 0.1 if hard and right else 1.0
        if rng.random() < chance:
            text = f"{'prove' if hard else 'greet'} this {i}"
            agents = {"a": AgentOutcome(score=float(right), label_propensity=chance)}
            outcomes.append(QuestionOutcomes(f"q{i}", f"q{i}", text, "", agents))
    train_success(outcomes, SuccessOptions(out=tmp_path / "c"))
    estimator = metaprobe.load(tmp_path / "c")
    hard_p, easy_p = (estimator.estimate(f"{word} this")[0].p for word in ("prove", "greet"))
    assert abs(hard_p - 0.9) < 0.1
    assert abs(easy_p - 0.5) < 0.1


def test_equal_weights_change_nothing_and_unequal_ones_count_as_fewer_labels() -> None:
    def made(chance: float | None, other: float | None) -> list[QuestionOutcomes]:
        return [
            QuestionOutcomes(
                f"q{i}", f"q{i}", "", "", {"a": AgentOutcome(score=i % 2, label_propensity=other if i < 30 else chance)}
            )
            for i in range(60)
        ]

    bare, alike, unequal = (success_data(made(*chances)) for chances in ((None, None), (0.2, 0.2), (0.2, 0.6)))
    assert bare.fingerprint == alike.fingerprint != unequal.fingerprint
    assert np.abs(alike.weight - 1).max() < 1e-12
    assert label_counts(bare)[0, -1] == label_counts(alike)[0, -1] == 60
    assert label_counts(unequal)[0, -1] == int((30 * 5 + 30 / 0.6) ** 2 / (30 * 25 + 30 / 0.36))
