"""When two answers are the same is chosen by what labelled answers say of each reading, and the choice is told."""

import json
import re
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from panel_worlds import completion, panels

from metaprobe.cli import main
from metaprobe.routing.panel.asking import Panel
from metaprobe.routing.panel.compared_answers import EXACT, OVERLAP, PanelAnswer
from metaprobe.training.panel.labelled_panels import panels_at
from metaprobe.training.panel.same_answers import (
    AUDIT,
    CHOICE,
    FUNCTION,
    MAX_UNEQUAL,
    MIN_GROUPS_TO_TRY,
    NUMBER,
    LabelledQuestion,
    choose_reading,
    equality_audit,
    noise_of_equal_answers,
    unequal_pairs,
)
from metaprobe.training.recipes.panel import train_panel
from metaprobe.training.training_options import PanelOptions

ENOUGH, FEW = MIN_GROUPS_TO_TRY + 20, MIN_GROUPS_TO_TRY - 20


def asked(
    n: int, write: Callable[[int, bool, int], str], *, answers: int = 5, rate: float = 0.6, noise: float = 0.0
) -> list[LabelledQuestion]:
    """Returns n questions. `write`: the text of a right or wrong answer, from the question, that, and a draw."""
    rng = np.random.default_rng(0)
    found = []
    for question in range(n):
        right = rng.random(answers) < rate
        texts = [write(question, bool(one), int(rng.integers(1000))) for one in right]
        labels = np.where(rng.random(answers) < noise, ~right, right).astype(float).tolist()
        found.append(LabelledQuestion(f"What is {question}?", f"g{question}", [*map(PanelAnswer, texts)], labels))
    return found


def last_digits(answer: PanelAnswer, _: str) -> str | None:
    """A coarse reading: the last number of a text, whatever stands before it."""
    found = re.findall(r"\d+", answer.text)
    return found[-1] if found else None


def words(answer: PanelAnswer, _: str) -> str:
    return answer.text


def fraction(question: int, right: bool, draw: int) -> str:
    """The right answer, or one of others that end in the same number."""
    return rf"\frac{{{question + 1 if right else question + 2 + draw % 7}}}{{1013}}"


def sentence(question: int, right: bool, draw: int) -> str:
    """A number in words that differ from answer to answer."""
    value = 700 + question if right else 5000 + draw
    return ("It is {}", "So we get {}", "Answer: {}", "That makes {}.0")[draw % 4].format(value)


@pytest.mark.parametrize("n", [FEW, ENOUGH])
def test_a_coarse_reading_of_fractions_is_not_taken_however_often_it_agrees(n: int) -> None:
    chosen = choose_reading(asked(n, fraction, rate=0.4), readings={EXACT: words, NUMBER: last_digits})
    assert chosen.same == EXACT
    assert "equal answers have different labels by number" in chosen.why
    # Its vote looks no worse where the merged class happens to be right, so that accuracy alone would not tell.
    own = {one.same: one for one in chosen.tried}
    assert own[EXACT].sound
    assert not own[NUMBER].sound


def test_the_answers_own_form_is_left_where_equal_answers_have_different_labels() -> None:
    """Numbers whose sign a reading drops: most answers are numbers, and still it is not taken."""
    questions = asked(FEW, lambda question, right, _: f"{'' if right else '-'}{question + 3}", rate=0.5)
    chosen = choose_reading(questions, readings={EXACT: words, NUMBER: last_digits})
    assert chosen.same == EXACT
    assert "but by number equal answers have different labels" in chosen.why


def test_fractions_in_lines_do_not_train_by_a_reading_that_merges_them(tmp_path: Path) -> None:
    data = panels_at(written(tmp_path / "lines.jsonl", asked(80, fraction)))
    assert data.same == EXACT
    assert data.literal is not None
    assert passed(data.answer_class, data.literal, data.right, data.groups)


@pytest.mark.parametrize(
    ("write", "same"),
    [
        (lambda question, right, draw: f"Answer: {question if right else 900 + draw}", NUMBER),
        (lambda _, right, draw: f"Answer: {'B' if right else 'ACD'[draw % 3]}", CHOICE),
        (lambda q, right, draw: f"```python\ndef f():\n    return {q if right else 900 + draw}\n```", FUNCTION),
        (lambda q, right, draw: f"Answer: {'Paris and Rome' if right else 'Lyon near ' + 'abcde'[draw % 5]}", EXACT),
    ],
)
def test_with_few_groups_the_answers_own_form_is_taken_and_said(write: Any, same: str) -> None:
    chosen = choose_reading(asked(FEW, write))
    assert chosen.same == same
    assert "are too few" in chosen.why


def test_a_reading_is_taken_where_the_vote_by_it_is_better() -> None:
    questions = asked(ENOUGH, sentence, rate=0.4)
    chosen = choose_reading(questions, readings={EXACT: words, NUMBER: last_number})
    assert chosen.same == NUMBER
    assert choose_reading(questions, readings={EXACT: words, NUMBER: last_number}) == chosen


def last_number(answer: PanelAnswer, _: str) -> float:
    return float(re.findall(r"[\d.]+\d", answer.text)[-1])


def test_labels_that_are_noisy_are_no_fault_of_the_reading() -> None:
    noisy = asked(ENOUGH, lambda question, right, draw: str(question if right else 900 + draw % 3), noise=0.08)
    chosen = choose_reading(noisy)
    assert chosen.same == NUMBER
    assert all(one.sound for one in chosen.tried if one.same != OVERLAP)


def test_equal_answers_with_different_labels_fail_an_audit(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    right = rng.random((50, 3)) < 0.5
    form = np.where(right | (rng.random((50, 3)) < 0.5), 0, 1 + np.arange(3))
    panel = Panel(train_panel(panels(form, right), PanelOptions(out=tmp_path / "c")))
    audit = panel.checkpoint.manifest.audits[AUDIT]
    assert not audit.passed
    assert "Give another reading" in audit.detail


def test_noise_is_what_labels_of_identical_answers_show() -> None:
    literal = np.zeros((60, 2), dtype=np.int64)
    right = np.stack([np.ones(60), np.arange(60) % 10 > 0], axis=1).astype(float)
    groups = [str(i) for i in range(60)]
    assert noise_of_equal_answers(literal, right, groups) > 0.1
    assert noise_of_equal_answers(literal[:20], right[:20], groups[:20]) == MAX_UNEQUAL
    assert passed(literal, literal, right, groups)
    alone = np.array([[0, 1]] * 60)
    assert not passed(literal, alone, right, groups)
    assert equality_audit(alone, alone, right, groups) is None


def passed(*arrays: Any) -> bool:
    """Whether the audit of these answers passes."""
    audit = equality_audit(*arrays)
    assert audit is not None
    return audit[1]


@given(
    st.lists(
        st.lists(st.tuples(st.integers(-1, 2), st.sampled_from([0.0, 1.0, np.nan])), min_size=4, max_size=4),
        min_size=1,
        max_size=4,
    )
)
def test_unequal_pairs_are_counted_as_by_hand(rows: list[list[tuple[int, float]]]) -> None:
    form, right = (np.array([[pair[k] for pair in row] for row in rows]) for k in range(2))
    for share, row in zip(unequal_pairs(form, right), rows, strict=True):
        known = [pair for pair in row if pair[0] >= 0 and pair[1] == pair[1]]
        pairs = [(a[1], b[1]) for a, b in combinations(known, 2) if a[0] == b[0]]
        assert share == pytest.approx(np.mean([a != b for a, b in pairs]) if pairs else np.nan, nan_ok=True)


def written(path: Path, questions: Sequence[LabelledQuestion]) -> Path:
    lines = [
        {
            "question_id": one.group,
            "messages": [{"role": "user", "content": one.question}],
            "response": completion(answer.text, logprob=-0.2),
            "labels": {"correct": int(label or 0)},
        }
        for one in questions
        for answer, label in zip(one.answers, one.labels, strict=True)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_a_training_says_what_it_took_and_an_option_fixes_it(tmp_path: Path) -> None:
    lines = written(
        tmp_path / "lines.jsonl", asked(50, lambda q, right, draw: str(q if right else 900 + draw), answers=3)
    )
    run = CliRunner(catch_exceptions=False)
    made = run.invoke(main, ["train", "panel", str(lines), "--out", str(tmp_path / "chosen")])
    assert "answers are the same by number" in made.stdout
    chosen = Panel.load(tmp_path / "chosen")
    assert chosen.same == NUMBER
    why = chosen.checkpoint.manifest.contract["same_chosen"]
    assert why in (tmp_path / "chosen" / "README.md").read_text(encoding="utf-8")
    fixed = panels_at(lines, same=EXACT)
    assert (fixed.same, fixed.reading) == (EXACT, None)


def test_answers_without_texts_are_the_same_by_their_words() -> None:
    assert choose_reading([]).same == EXACT
    silent = [LabelledQuestion("?", "g", [PanelAnswer(""), PanelAnswer(" ")], [1.0, 0.0])]
    assert choose_reading(silent).same == EXACT
