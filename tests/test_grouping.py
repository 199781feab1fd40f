"""Questions that repeat never lie in two folds, and that is said; what cannot be joined is left for the audits."""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaprobe.checkpoints import describe
from metaprobe.eval.audits_of_data import near_duplicates, repeated_questions
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item, Label, Run
from metaprobe.training.evidence import load_evidence
from metaprobe.training.folds import JOINABLE_GROUPS, join_groups
from metaprobe.training.recipes.compare_runs import comparison
from metaprobe.training.recipes.train_quality import load_heads, write_quality
from metaprobe.training.study import study_of

N = 456
WORDS = [f"{a}{b}{c}" for a in "bdfgk" for b in "aeiou" for c in "lmnrst"]


def distinct(n: int, words: int = 14) -> list[str]:
    return [" ".join(row) for row in np.random.default_rng(0).choice(WORDS, (n, words))]


def written(path: Path, questions: list[str]) -> Path:
    """A store of one answer a question, each in a group of its own; log-probabilities tell right from wrong."""
    rng = np.random.default_rng(1)
    with RunStore(path).writer() as writer:
        for i, question in enumerate(questions):
            right = rng.random() < 0.5
            logprobs = -rng.exponential(0.4 if right else 0.9, rng.integers(8, 30)).astype(np.float32)
            call = Call(id=f"c{i}", logprobs=logprobs, model="m", logprobs_mode="raw", stage="answer")
            writer.add(
                Run(
                    id=f"r{i}",
                    system="s",
                    variant="v",
                    item=Item(f"i{i}", question, task="t", group=f"g{i}"),
                    calls=(call,),
                    labels=(Label(f"c{i}", "correct", float(right), "program"),),
                )
            )
    return path


def four_repeat(path: Path) -> Path:
    """456 answers: two pairs of questions are the same, typed again, under groups of their own."""
    questions = distinct(N)
    questions[100] = f"  {questions[7].upper()}?"
    questions[300] = f"{questions[8]}."
    return written(path, questions)


@pytest.mark.slow
@pytest.mark.filterwarnings("error::metaprobe.checkpoints.UntrustedCheckpoint")
def test_four_repeated_questions_of_456_are_joined_the_audits_pass_and_the_summaries_say_so(tmp_path: Path) -> None:
    store = four_repeat(tmp_path / "runs")
    said = "4 groups that ask the same questions, or nearly the same, were joined into 2"
    evidence = load_evidence([store], hidden=False)
    assert evidence.regrouped == said
    assert len(set(evidence.table.groups.tolist())) == N - 2
    [heads] = load_heads([store], ["correct"]).values()
    assert (heads.regrouped, heads.table.groups.tolist()) == (said, evidence.table.groups.tolist())
    study = study_of(evidence, folds=3)
    checkpoint = write_quality(tmp_path / "quality", {"correct": study}, command="a test")
    audits = checkpoint.manifest.audits
    for name in ("splits share no group", "no question in two roles", "no near-duplicate questions"):
        assert audits[name].passed, audits[name]
    assert checkpoint.trust != "invalid", checkpoint.weaknesses
    assert said in describe(checkpoint)
    assert said in (tmp_path / "quality" / "README.md").read_text()
    compared = comparison(study, command="a test")
    assert f"{said}." in compared.notes
    held = Counter(audit.method for audit in compared.audits if audit.name.startswith(f"{audit.method} beats "))
    assert {compared.headline, study.ladder.name} <= held.keys(), "what the report recommends is audited"
    assert len(set(held.values())) == 1, "all against one list"
    assert not [
        audit for audit in compared.audits if "question" in audit.name and "roles" in audit.name and not audit.passed
    ]


def test_without_repeats_groups_stay_as_they_are_and_nothing_is_said() -> None:
    groups = ["b", "a", "a", "c"]
    joined, note = join_groups(groups, ["one", "two", "two", ""])
    assert (joined.tolist(), note) == (groups, "")


def test_questions_that_differ_in_numbers_alone_are_different_ones() -> None:
    asked = [f"what is {i} plus {i * 7} in the ring of whole numbers" for i in range(12)]
    assert join_groups([f"g{i}" for i in range(12)], asked)[1] == ""


def test_a_question_that_repeats_within_its_group_only_joins_nothing() -> None:
    assert join_groups(["a", "a", "b"], ["one two", "one two", "three"])[1] == ""


def test_joining_goes_on_over_the_given_groups() -> None:
    """a and b share one question, b and c another: all three must stay together."""
    joined, note = join_groups(["a", "b", "b", "c", "d"], ["one x", "one x", "two y", "two y", "three z"])
    assert joined.tolist() == ["a", "a", "a", "a", "d"]
    assert note.startswith("3 groups that ask")
    assert note.endswith("joined into 1")


def test_a_way_of_asking_is_no_question_and_what_is_left_fails_the_audit_in_proportion() -> None:
    asked = distinct(100)
    asked[:40] = ["Which of these is true?"] * 40
    asked[50] = asked[51]
    _, note = join_groups([f"g{i}" for i in range(100)], asked)
    assert note.startswith("2 groups"), "the 40 are more than a tenth of all groups"
    rows = np.arange(100)
    y = rows % 2
    splits = [{"train": rows[rows % 5 != f], "test": rows[rows % 5 == f]} for f in range(5)]
    audit = repeated_questions(np.array(asked, dtype="U200"), splits, y=y)
    assert (audit.passed, audit.severity) == (False, "invalid")
    assert "touches 42 of 100 answers (42.0%), and AUROC can move by at most 0.664" in audit.detail


def test_what_is_not_joined_stays_alone_whatever_else_is_joined() -> None:
    asked = distinct(60)
    asked[:30] = ["Which of these is true?"] * 30  # half of all groups: a way of asking
    asked[40], asked[50] = asked[41], asked[51]
    groups = [f"g{i:02}" for i in range(60)]
    joined, _ = join_groups(groups, asked)
    expected = list(groups)
    expected[41], expected[51] = "g40", "g50"
    assert joined.tolist() == expected


def test_a_small_leak_is_weak_and_says_how_far_it_reaches() -> None:
    asked, rows = np.array(distinct(N), dtype="U200"), np.arange(N)
    asked[1] = asked[0]  # rows 0 and 1 lie in different folds
    splits = [{"train": rows[rows % 3 != f], "test": rows[rows % 3 == f]} for f in range(3)]
    for audit in (repeated_questions(asked, splits, y=rows % 2), near_duplicates(asked, splits, y=rows % 2)):
        assert audit.severity == "weak"
        # One answer of 228 of either kind: 1 - (227 / 228)^2.
        assert "touches 2 of 456 answers (0.4%), and AUROC can move by at most 0.009" in audit.detail
    assert not repeated_questions(asked, splits).passed
    assert "AUROC" not in repeated_questions(asked, splits).detail, "labels are not known"


phrases = st.lists(
    st.sampled_from(["aa bb cc dd ee", "aa bb cc dd ee ff", "kk ll mm", "KK ll, mm?", "rr ss 3 tt", "rr ss 4 tt"])
)


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), phrases.map(" ".join)), min_size=1, max_size=30))
def test_nearly_the_same_question_never_stands_in_two_groups(answers: list[tuple[str, str]]) -> None:
    """The definition is written out again here: equal words, or the same numbers and a Jaccard of 3-grams >= 0.8."""

    def words(question: str) -> list[str]:
        return re.findall(r"\w+", question.lower())

    def grams(question: str) -> set[tuple[str, ...]]:
        found = words(question)
        return {tuple(found[i : i + 3]) for i in range(max(len(found) - 2, 1))}

    groups, questions = zip(*answers, strict=True)
    assert len(set(groups)) <= JOINABLE_GROUPS, "so that whatever repeats is joined"
    after, _ = join_groups(groups, questions)
    for i, first in enumerate(questions):
        for j, second in enumerate(questions):
            if not words(first) or not words(second):
                continue
            a, b = grams(first), grams(second)
            numbers = [re.findall(r"\d+", q) for q in (first, second)]
            near = numbers[0] == numbers[1] and len(a & b) >= 0.8 * len(a | b)
            if words(first) == words(second) or near:
                assert after[i] == after[j], (first, second)
    for i, group in enumerate(groups):
        assert after[i] == after[groups.index(group)], "what was together stays together"
