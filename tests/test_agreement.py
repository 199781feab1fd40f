"""Agreement: what is learned of samples, without a label, from planted truth."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from conftest import made_up_canaries
from hypothesis import given
from hypothesis import strategies as st

import metaprobe
from metaprobe.cli import main
from metaprobe.eval.metrics.ranked import auroc, spearman
from metaprobe.probes.quality import QualityPredictor
from metaprobe.records.errors import RecordError
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Hidden, Item, Label, Message, Run
from metaprobe.training.agreement import MIN_QUESTIONS, agreement_pairs
from metaprobe.training.evidence import load_evidence, paired
from metaprobe.training.training_options import WrongOptions

POSITIONS_KEPT = ("prompt_last", "answer_last", "answer_mean")
RUNS = 80
"""Questions of the planted store, each with three answers."""


def planted_runs(questions: int = RUNS, samples: int = 3, *, model: str = "m", seed: int = 0, **item: Any) -> list[Run]:
    """Runs of one question each: the mean log-probability of an answer tells how often the model says the same."""
    rng = np.random.default_rng(seed)
    runs = []
    for number in range(questions):
        sure = rng.uniform(0.2, 1.0)
        calls = []
        for sample in range(samples):
            told = 7 if rng.random() < sure else int(rng.integers(10, 99))
            logprobs = np.log(np.clip(sure + rng.normal(0, 0.05, 6), 0.02, 0.999)).astype(np.float32)
            calls.append(
                Call(
                    id=f"{model}/{number}/{sample}",
                    stage="answer",
                    model=model,
                    messages=(Message("user", f"What is number {number} of {seed}?"),),
                    text=f"{told}",
                    tokens=tuple(f"{told:<6}"),
                    logprobs=logprobs,
                    logprobs_mode="raw",
                    finish_reason="stop",
                    hidden=Hidden(_state(rng, sure), (3,), POSITIONS_KEPT, canaries=made_up_canaries((3,), 4, model)),
                )
            )
        told = {"question": f"What is number {number} of {seed}?", "gold": ("7",), "group": f"g{number}"} | item
        labels = tuple(Label(call.id, "correct", float(call.text == "7"), "program") for call in calls)
        item_of = Item(id=f"q{number}", task="numbers", **told)
        runs.append(
            Run(id=f"{model}/{number}", system="s", variant="v", item=item_of, calls=tuple(calls), labels=labels)
        )
    return runs


def _state(rng: np.random.Generator, sure: float) -> np.ndarray:
    values = rng.normal(0, 0.3, (1, 3, 4))
    values[..., 0] += 3 * sure
    values[..., 3] += 1.5  # as long as the canaries' states
    return values.astype(np.float16)


def store_of(path: Path, runs: Sequence[Run]) -> Path:
    RunStore(path).append(runs)
    return path


def changed(runs: Sequence[Run], change: Callable[[Call], Call]) -> list[Run]:
    return [replace(run, calls=tuple(change(call) for call in run.calls)) for run in runs]


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return planted_runs()


@pytest.fixture(scope="module")
def taught(runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("agreement")
    store = store_of(folder / "runs", runs)
    return metaprobe.train_quality(store, target="agreement", folds=2, out=folder / "taught").path


def test_pairs_hold_each_answer_as_often_as_it_has_partners(runs: list[Run]) -> None:
    pairs = agreement_pairs(runs)
    assert pairs.questions == RUNS
    assert len(pairs.same) == RUNS * 3 * 2
    texts = {call.id: call.text for run in runs for call in run.calls}
    share = {one: pairs.same[[at for at, other in enumerate(pairs.call_ids) if other == one]].mean() for one in texts}
    for run in runs:
        for call in run.calls:
            others = [other.text == call.text for other in run.calls if other.id != call.id]
            assert share[call.id] == pytest.approx(np.mean(others))


def test_the_planted_order_is_learned(taught: Path, runs: list[Run]) -> None:
    checkpoint = QualityPredictor.load(taught).checkpoint
    fresh = planted_runs(150, seed=5)
    predictor = QualityPredictor.load(taught)
    scores, right = [], []
    for run in fresh:
        verdict = predictor.predict(run.calls[0])
        assert verdict.score is None
        assert verdict.agreement is not None
        scores.append(verdict.agreement)
        right.append(run.calls[0].text == run.calls[1].text)
    means = [float(run.calls[0].logprobs.mean()) for run in fresh]  # type: ignore[union-attr]
    best = auroc(np.array(right, int), np.array(means))  # the planted order itself
    assert auroc(np.array(right, int), np.array(scores)) > best - 0.03
    assert checkpoint.manifest.metrics["auroc"].estimate > 0.6
    assert np.mean(scores) == pytest.approx(np.mean(right), abs=0.12)


def test_partners_of_other_questions_teach_nothing(runs: list[Run], tmp_path: Path) -> None:
    store = store_of(tmp_path / "runs", runs)
    evidence = load_evidence([store], target="agreement")
    rng = np.random.default_rng(3)
    means = np.array([one.mean() for one in evidence.table.logprobs])
    true = auroc(evidence.table.y, means)
    shuffled = [auroc(rng.permutation(evidence.table.y), means) for _ in range(20)]
    assert true > 0.65
    assert abs(np.mean(shuffled) - 0.5) < 0.03


def test_labels_of_right_and_wrong_change_nothing(runs: list[Run], taught: Path, tmp_path: Path) -> None:
    flipped = [replace(run, labels=tuple(replace(one, value=1 - one.value) for one in run.labels)) for run in runs]
    bare = [replace(run, labels=()) for run in runs]
    pairs = [agreement_pairs(one) for one in (runs, flipped, bare)]
    assert all(one.call_ids == pairs[0].call_ids and (one.same == pairs[0].same).all() for one in pairs)
    store = store_of(tmp_path / "runs", flipped)
    other = metaprobe.train_quality(store, target="agreement", folds=2, out=tmp_path / "taught").path
    assert (other / "model.onnx").read_bytes() == (taught / "model.onnx").read_bytes()
    old, new = (json.loads((path / "manifest.json").read_text()) for path in (taught, other))
    for fact in ("metrics", "thresholds", "flagging", "contract"):
        assert old[fact] == new[fact]


@pytest.mark.parametrize("end", ["length", "", "aborted"])
def test_an_answer_that_did_not_end_by_itself_makes_no_row(runs: list[Run], end: str) -> None:
    cut = changed(runs, lambda call: replace(call, finish_reason=end) if call.id.endswith("/0") else call)
    pairs = agreement_pairs(cut)
    assert not [one for one in pairs.call_ids if one.endswith("/0")]
    assert pairs.cut == RUNS
    assert f"{RUNS} that did not end by themselves" in pairs.note


@pytest.mark.parametrize("end", ["refusal", "tool_calls"])
def test_refusals_and_tool_calls_are_no_answers(runs: list[Run], end: str) -> None:
    wordless = changed(runs, lambda call: replace(call, finish_reason=end) if call.id.endswith("/0") else call)
    assert not [one for one in agreement_pairs(wordless).call_ids if one.endswith("/0")]


def test_answers_of_two_models_are_never_compared() -> None:
    one, two = planted_runs(samples=1), planted_runs(samples=1, model="other")
    with pytest.raises(RecordError, match="0 questions have two answers of one model"):
        agreement_pairs([*one, *two])
    pairs = agreement_pairs([*planted_runs(samples=2), *two])
    assert {name.split("/")[0] for name in pairs.call_ids} == {"m"}
    assert pairs.alone == RUNS


def test_answers_to_other_messages_of_one_item_are_never_compared(runs: list[Run]) -> None:
    def asked_apart(call: Call) -> Call:
        number = call.id.rpartition("/")[2]
        return replace(call, messages=(Message("user", f"asked in way {number}"),))

    told = (
        rf"0 questions have two answers .*; expected at least 20: {RUNS} more have two answers, to messages that differ"
    )
    with pytest.raises(RecordError, match=told):
        agreement_pairs(changed(runs, asked_apart))


@pytest.mark.parametrize("told", ["all", "none"])
def test_samples_that_never_or_always_agree_are_refused(runs: list[Run], told: str) -> None:
    def text(call: Call) -> Call:
        return replace(call, text="7" if told == "all" else str(1000 + 7 * int(call.id.rpartition("/")[2])))

    counted = f"{RUNS} have two answers that say the same, and 0" if told == "all" else "0 have two answers"
    with pytest.raises(RecordError, match=f"of {RUNS} questions {counted}"):
        agreement_pairs(changed(runs, text))


def test_samples_that_agree_on_nine_questions_are_refused_with_what_to_do(runs: list[Run]) -> None:
    agreeing = {run.id for run in runs[:9]}

    def text(call: Call) -> Call:
        run, _, number = call.id.rpartition("/")
        return replace(call, text="7" if run in agreeing else str(1000 + 7 * int(number)))

    with pytest.raises(RecordError, match=r"9 have two answers that say the same.*short answers"):
        agreement_pairs(changed(runs, text))


def test_too_few_questions_are_refused() -> None:
    with pytest.raises(RecordError, match=f"{MIN_QUESTIONS - 1} questions"):
        agreement_pairs(planted_runs(MIN_QUESTIONS - 1))


def short_lines(path: Path, runs: Sequence[Run], **beside: str) -> Path:
    """Writes the answers of the runs as short lines. All samples of a question have the log-probabilities of the
    first."""
    with path.open("w") as file:
        for run in runs:
            numbers = np.round(run.calls[0].logprobs, 5).tolist()  # type: ignore[call-overload]
            for call in run.calls:
                line = {"question_id": run.item.id, "question": run.item.question, "answer": call.text}
                file.write(json.dumps({**line, "logprobs": numbers, "model": "m", **beside}) + "\n")
    return path


@pytest.mark.parametrize(
    ("beside", "told"),
    [
        ({}, f'{3 * RUNS} of {3 * RUNS} answers do not say how they ended: add "finish_reason"'),
        ({"finish_reson": "stop"}, "unknown key 'finish_reson'; did you mean 'finish_reason'?"),
        ({"finish_reason": "length"}, "ask more questions"),
    ],
)
def test_short_lines_that_do_not_say_how_they_ended_are_refused_by_that_name(
    beside: dict[str, str], told: str, tmp_path: Path, runs: list[Run]
) -> None:
    lines = short_lines(tmp_path / "lines.jsonl", runs, **beside)
    words = ["train", "quality", str(lines), "--target", "agreement", "--out", str(tmp_path / "out")]
    refused = CliRunner().invoke(main, words)
    assert refused.exit_code == 1
    assert told in refused.output


def test_two_labels_of_one_answer_are_no_fault_where_the_label_is_agreement(tmp_path: Path, runs: list[Run]) -> None:
    lines = short_lines(tmp_path / "lines.jsonl", runs, finish_reason="stop")
    words = ["train", "quality", str(lines), "--target", "agreement", "--folds", "2", "--out", str(tmp_path / "out")]
    made = CliRunner().invoke(main, words)
    assert made.exit_code == 0, made.output
    card = (tmp_path / "out" / "README.md").read_text()
    assert "not made: twins have one label" in card
    assert card.count("twins have one label") == 1


def test_samples_of_two_stages_are_told_apart(runs: list[Run]) -> None:
    def staged(run: Run) -> Run:
        first = tuple(replace(call, id=f"draft/{call.id}", stage="draft") for call in run.calls)
        return replace(run, calls=(*run.calls, *first))

    both = [staged(run) for run in runs]
    with pytest.raises(RecordError, match="answer, draft"):
        agreement_pairs(both)
    pairs = agreement_pairs(both, stage="draft")
    assert all(name.startswith("draft/") for name in pairs.call_ids)


def test_lines_that_share_a_question_are_samples_of_it(runs: list[Run], tmp_path: Path) -> None:
    lines = [
        {
            "id": call.id,
            "question_id": run.item.id,
            "question": run.item.question,
            "answer": call.text,
            "logprobs": [float(one) for one in call.logprobs],  # type: ignore[union-attr]
            "finish_reason": "stop",
            "model": "m",
        }
        for run in runs
        for call in run.calls
    ]
    path = tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    evidence = load_evidence([path], target="agreement")
    assert len(evidence.table) == RUNS * 6
    assert "a number and nothing else" in evidence.compared
    store = load_evidence([store_of(tmp_path / "runs", runs)], target="agreement")
    assert evidence.table.y.tolist() == store.table.y.tolist()


def test_items_with_checks_are_compared_by_these_and_others_by_their_form() -> None:
    checked = planted_runs(40, seed=1, check="number")
    bare = [replace(run, id=f"b{run.id}", item=replace(run.item, id=f"b{run.item.id}")) for run in planted_runs(40)]
    bare = changed(bare, lambda call: replace(call, id=f"b{call.id}"))
    pairs = agreement_pairs([*checked, *bare])
    assert pairs.questions == 80
    assert "by the items' checks (number)" in pairs.reading
    assert "number:" in pairs.reading


@given(st.lists(st.lists(st.sampled_from(["1", "2", "3"]), min_size=2, max_size=6), max_size=5))
def test_a_pair_agrees_exactly_where_its_answers_do(drawn: list[list[str]]) -> None:
    texts = [*drawn, *10 * [["1", "1"]], *10 * [["1", "2"]]]
    base = planted_runs(len(texts), 1)
    runs = [
        replace(run, calls=tuple(replace(run.calls[0], id=f"{run.id}/{at}", text=told) for at, told in enumerate(own)))
        for run, own in zip(base, texts, strict=True)
    ]
    pairs = agreement_pairs(runs)
    held = {
        f"{run.id}/{at}": own.count(told) - 1
        for run, own in zip(runs, texts, strict=True)
        for at, told in enumerate(own)
    }
    for name, value in zip(pairs.call_ids, pairs.same.tolist(), strict=True):
        assert not value or held[name] > 0  # an answer that nobody repeats agrees with nobody
    size = {run.id: len(run.calls) for run in runs}
    for name in set(pairs.call_ids):
        assert pairs.call_ids.count(name) == min(size[name.rpartition("/")[0]] - 1, 4)


def test_rows_of_answers_that_are_left_out_elsewhere_are_left_out(runs: list[Run], tmp_path: Path) -> None:
    evidence = load_evidence([store_of(tmp_path / "runs", runs)], target="agreement")
    pairs = replace(agreement_pairs(runs), call_ids=tuple("strange" for _ in agreement_pairs(runs).call_ids))
    with pytest.raises(RecordError, match="no answer"):
        paired(evidence, pairs)


def test_thirty_labels_make_a_score_of_it_in_nearly_the_same_order(taught: Path, tmp_path: Path) -> None:
    fresh = planted_runs(90, 1, seed=9)
    calls = [run.calls[0] for run in fresh]
    before = QualityPredictor.load(taught)
    labels = [float(call.text == "7") for call in calls[:30]]
    after = before.adapt(calls[:30], labels, out=tmp_path / "right")
    old, new = before.predict_many(calls), after.predict_many(calls)
    agreements, scores = [one.agreement for one in old], [one.score for one in new]
    assert None not in scores
    assert spearman(np.array(agreements), np.array(scores)) > 0.98
    assert [one.agreement for one in new] == agreements  # the head of before stays beside it
    assert "flagged_by" not in after.checkpoint.manifest.contract
    right = np.mean([call.text == "7" for call in calls])
    assert abs(np.mean(scores) - right) < abs(np.mean(agreements) - right) + 0.05  # type: ignore[arg-type]


def test_cut_answers_teach_no_score_and_get_none(taught: Path, tmp_path: Path) -> None:
    calls = [run.calls[0] for run in planted_runs(90, 1, seed=9)]
    labels = [float(call.text == "7") for call in calls[:60]]
    cut = [replace(call, id=f"cut-{call.id}", finish_reason="length") for call in calls[:40]]
    before = QualityPredictor.load(taught)
    alone = before.adapt(calls[:60], labels, out=tmp_path / "alone")
    mixed = before.adapt([*calls[:60], *cut], [*labels, *[0.0] * 40], out=tmp_path / "mixed")
    again = mixed.adapt([*calls[:60], *cut], [*labels, *[0.0] * 40], out=tmp_path / "again")
    assert mixed.checkpoint.manifest.training.n == alone.checkpoint.manifest.training.n == 60
    assert again.checkpoint.manifest.training.n == 60
    assert "40 labelled answers that were cut" in (tmp_path / "mixed" / "README.md").read_text()
    expected = [one.score for one in alone.predict_many(calls[60:])]
    assert [one.score for one in mixed.predict_many(calls[60:])] == pytest.approx(expected)
    for adapted in (mixed, again):
        flagging = QualityPredictor.load(adapted.checkpoint.path, flag_below=0.3)
        for verdict in (flagging.predict(cut[0]), *flagging.predict_many(cut[:9])):
            assert (verdict.score, verdict.agreement, verdict.flagged) == (None, 0.0, True)
            assert "not scored" in verdict.reason
    with pytest.raises(RecordError, match="all 40 labelled answers were cut"):
        before.adapt(cut, [0.0, 1.0] * 20, out=tmp_path / "cut")


def test_many_labels_correct_the_order_that_agreement_gives(taught: Path, tmp_path: Path) -> None:
    before, rng = QualityPredictor.load(taught), np.random.default_rng(3)
    calls = [run.calls[0] for run in planted_runs(400, 1, seed=9)]
    calls = [replace(call, logprobs=np.tile(call.logprobs, rng.integers(1, 6)), tokens=()) for call in calls]
    y = np.array([float(len(call.logprobs) > 15) for call in calls])  # long answers are right, which agreement hides
    after = before.adapt(calls[:200], y[:200].tolist(), out=tmp_path / "right")
    old = np.array([one.agreement for one in before.predict_many(calls[200:])])
    new = np.array([one.score for one in after.predict_many(calls[200:])])
    assert auroc(y[200:], new) > auroc(y[200:], old) + 0.1
    card = (tmp_path / "right" / "README.md").read_text()
    assert "labels and agreement are joined in one fit" in card
    assert "the order of answers of one run is as before" not in card


def test_a_few_labels_that_chance_made_better_move_the_scale_of_agreement_in_part(taught: Path, tmp_path: Path) -> None:
    calls = [run.calls[0] for run in planted_runs(25, 1, seed=9)]
    before = QualityPredictor.load(taught)
    agreements = np.array([one.agreement for one in before.predict_many(calls)])
    rank = np.argsort(np.argsort(agreements))
    said, labels = agreements.mean(), [float(place not in (0, 2, 5, 9)) for place in rank]  # 21 of 25 right
    moved = []
    for times in (1, 40):
        after = before.adapt(calls * times, labels * times, out=tmp_path / str(times))
        moved.append(float(np.mean([one.score for one in after.predict_many(calls)])))  # type: ignore[misc]
    few, many = moved
    assert said + 0.05 < few < many - 0.02
    assert many == pytest.approx(21 / 25, abs=0.03)


@pytest.mark.parametrize(
    "train",
    [metaprobe.train_gate, metaprobe.compare, lambda runs, **told: metaprobe.train_quality(runs, catch=0.5, **told)],
)
def test_what_needs_right_and_wrong_refuses_agreement(train: Any, tmp_path: Path, runs: list[Run]) -> None:
    store = store_of(tmp_path / "runs", runs)
    with pytest.raises(WrongOptions, match="label"):
        train(store, target="agreement", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["train", "hidden", "--when", "before"], "two answers of the model to the question agree"),
        (["train", "hidden", "--when", "after"], "asked again, would say the same"),
        (["train", "blend"], "asked again, would say the same"),
    ],
)
def test_probes_on_hidden_states_learn_agreement_and_say_so(
    words: list[str], meant: str, tmp_path: Path, runs: list[Run]
) -> None:
    store = store_of(tmp_path / "runs", runs)
    out = tmp_path / "out"
    made = CliRunner().invoke(main, [*words, str(store), "--target", "agreement", "--folds", "2", "--out", str(out)])
    assert made.exit_code == 0, made.output
    card = (out / "README.md").read_text()
    assert meant in card
    assert "no probability of being right" in card
    assert "is right" not in card
    scored = CliRunner().invoke(main, ["score", str(out), str(store)])
    assert scored.exit_code == 0, scored.output
    lines = [json.loads(line) for line in scored.stdout.splitlines()]
    assert {line["score"] for line in lines} == {None}
    assert all(0 < line["heads"]["agreement"] < 1 for line in lines)
    assert any(line["flagged"] for line in lines)
    refused = CliRunner().invoke(main, ["score", str(out), str(store), "--catch", "0.5"])
    assert refused.exit_code == 1
    assert "labels" in refused.output
