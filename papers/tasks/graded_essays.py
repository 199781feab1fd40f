"""Sets of graded essays: one item an essay and trait, and agreement with the human grade.

ASAP essay sets 7 and 8 have human grades of every trait (Hewlett Foundation, Kaggle 2012). The early-token confidence
paper (appendix A) uses these and does not say which grade of the two raters it takes. Here: the third rater's if there
is one, as the set's own resolved score does, or else the mean of the two, halves rounded up. The texts of tasks and
grades are ours, short, after the set's rubrics. Essays are unchanged, with placeholders such as @PERSON1.

Argumentative essays of LEAF replace CAELF's, whose essays with their grades are not public: issue, evidence, position
and conclusion at levels 0 to 2. LEAF++ has ten traits from 1 to 5, and does not say who gave them. Two of them mean
nearly the same as a dimension of CAELF: clarity of topic for issue, specificity of explanation for evidence. They are
used as gold: 1 and 2 for level 0, 3 for level 1, 4 and 5 for level 2. Position and conclusion have no such trait: their
items have no gold and are not checked.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from metaprobe.api import ImportFileError, Interval, Item, quadratic_weighted_kappa, read_number
from metaprobe.papers.tasks.task import MetricIntervals, Row, Task, accuracy, guess_accuracy, pair_answers

ROWS_FOLDER = Path(__file__).parent / "rows"


def make_item(
    item_id: str,
    *,
    essay: str,
    essay_prompt: str,
    trait: str,
    rubric: Sequence[str],
    low: int,
    gold: int | None,
    group: str,
    dimension: str,
    source: str = "",
) -> Item:
    """Returns the item of one essay and trait.

    Args:
        item_id: id of the item.
        essay: the essay.
        essay_prompt: the students' task.
        trait: the trait.
        rubric: the meaning of each grade, from `low` upwards.
        low: the lowest grade.
        gold: the human grade; None for an item that is not checked.
        group: the group.
        dimension: the dimension.
        source: the source.
    """
    high = low + len(rubric) - 1
    fields = {
        "essay": essay,
        "essay_prompt": essay_prompt,
        "trait": trait,
        "rubric": "\n".join(f"{grade}: {meaning}" for grade, meaning in enumerate(rubric, start=low)),
        "low": str(low),
        "high": str(high),
    }
    question = (
        f"Grade a student's essay on one trait: {trait}.\n\nThe student's task: {essay_prompt}\n\n"
        f"Grades for {trait}:\n{fields['rubric']}\n\nEssay:\n{essay}\n\n"
        f"Which grade from {low} to {high} does the essay deserve for {trait}? Answer with one whole number."
    )
    return Item(
        id=item_id,
        question=question,
        gold=() if gold is None else (str(gold),),
        group=group,
        dimension=dimension,
        level=trait,
        source=source,
        check="none" if gold is None else "number",
        fields=fields,
    )


def grade(item: Item, answer: str) -> int | None:
    """Returns the whole number within the range that an answer gives, or None."""
    number = read_number("", answer)
    legal = range(int(item.fields["low"]), int(item.fields["high"]) + 1)
    return int(number) if number is not None and number in legal else None


def score_grades(items: Sequence[Item], answers: Sequence[str]) -> MetricIntervals:
    """Returns the accuracy over readable answers, and by dimension the quadratic weighted kappa with
    the human grades.
    """
    scores = accuracy(items, answers)
    for dimension in _dimensions(items):
        rows = [
            (int(item.gold[0]), number, item.group)
            for item, answer in pair_answers(items, answers)
            if item.dimension == dimension and item.gold and (number := grade(item, answer)) is not None
        ]
        if (kappa := Interval.of_metric(quadratic_weighted_kappa, rows)) is not None:
            scores[_kappa_name(dimension)] = kappa
    return scores


def chance_of_grades(items: Sequence[Item]) -> dict[str, float]:
    """Returns the results of uniformly drawn grades. Their kappa is 0, because they agree with nobody's grades."""
    return guess_accuracy(items) | {_kappa_name(dimension): 0.0 for dimension in _dimensions(items)}


def _dimensions(items: Sequence[Item]) -> list[str]:
    return list(dict.fromkeys(item.dimension for item in items if item.gold))


def _kappa_name(dimension: str) -> str:
    return f"quadratic weighted kappa, {dimension}"


ASAP_RUBRICS = ROWS_FOLDER / "asap-rubrics.json"
"""Maps a set to its `prompt`, the students' task; `low`, the lowest grade; and each trait of the data with its `name`
and `grades`, the meaning of each grade from `low` upwards.
"""


def asap_items(rows: Sequence[Row], seed: int) -> Iterator[Item]:
    """Yields one item a trait of each essay; the dimension is the set ("set 7", "set 8"), the level the trait.

    Fields: `essay`, `essay_prompt`, `trait`, `rubric`, `low`, `high`. A group is an essay with all of its traits.
    """
    sets = json.loads(ASAP_RUBRICS.read_text(encoding="utf-8"))
    for row in rows:
        number = row.whole("essay_set", 7, 8)
        essays = sets[str(number)]
        raters = [row.part(f"rater{rater}_traits") for rater in (1, 2, 3)]
        if raters[0] is None or raters[1] is None:
            raise ImportFileError(f"{row.where}: expected the grades of two raters in rater1_traits and rater2_traits")
        for key, trait in essays["traits"].items():
            low, high = essays["low"], essays["low"] + len(trait["grades"]) - 1
            first, second, *third = (rater.whole(key, low, high) for rater in raters if rater is not None)
            yield make_item(
                f"{row.text('id')}/{key}",
                essay=row.text("essay"),
                essay_prompt=essays["prompt"],
                trait=trait["name"],
                rubric=trait["grades"],
                low=low,
                gold=third[0] if third else (first + second + 1) // 2,
                group=row.text("id"),
                dimension=f"set {number}",
            )


ASAP = Task(
    name="asap",
    items=asap_items,
    source="https://www.kaggle.com/c/asap-aes",
    licence="rules of the Kaggle competition; not an open licence",
    score=score_grades,
    chance=chance_of_grades,
    folder="asap_7_8",
    files={"train": "data"},
)


ARGUMENTATIVE = "Argumentative"
ESSAY_RUBRICS = ROWS_FOLDER / "essay-rubrics.json"
"""Maps a dimension to the meaning of levels 0, 1 and 2: CAELF's table 2, in our words."""
TRAIT_OF_DIMENSION = {"issue": "clarity_of_topic", "evidence": "specificity_of_explanation"}
"""Maps a dimension to the trait of LEAF++ that replaces its grade."""


def essay_items(rows: Sequence[Row], seed: int) -> Iterator[Item]:
    """Yields one item a dimension of each argumentative essay. Fields as in ASAP; a group is an essay."""
    rubrics = json.loads(ESSAY_RUBRICS.read_text(encoding="utf-8"))
    for row in rows:
        if row.text("type") != ARGUMENTATIVE:
            continue
        traits = row.part("traits")
        if traits is None:
            raise ImportFileError(f"{row.where}: field 'traits' is missing; expected an object of grades from 1 to 5")
        essay = row.text("essay").replace("\\n", "\n").strip()  # the source writes line breaks as two characters
        for dimension, rubric in rubrics.items():
            trait = TRAIT_OF_DIMENSION.get(dimension)
            yield make_item(
                f"{row.text('id')}/{dimension}",
                essay=essay,
                essay_prompt=row.text("title"),
                trait=dimension,
                rubric=rubric,
                low=0,
                gold=min(max(traits.whole(trait, 1, 5) - 2, 0), 2) if trait else None,
                group=row.text("id"),
                dimension=dimension,
                source=f"LEAF++ {trait}" if trait else "",
            )


ESSAYS = Task(
    name="essays",
    items=essay_items,
    source="https://github.com/yes2310/Trait-Based-Essay-Feedback (LEAF++), essays from EssayForum.com",
    licence="research use with reference to EssayForum.com; traits: none stated",
    score=score_grades,
    chance=chance_of_grades,
    folder="leaf_essay_feedback",
    files={"test": "data", "dev": "data"},
)
