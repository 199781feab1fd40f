"""Shared by the sets of graded essays: one item an essay and trait, and agreement with the human grade."""

from collections.abc import Sequence

from metaprobe.eval.metrics.agreement import quadratic_weighted_kappa
from metaprobe.eval.metrics.bootstrap import cluster_weights, interval
from metaprobe.records.correctness import read_number
from metaprobe.records.types import Item
from metaprobe.tasks.task import Scores, accuracy, guess_accuracy, pair_answers


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
    """The item of one essay and trait. `rubric`: what each grade means, from `low` upwards; no gold: unchecked."""
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
    """The whole number within the range that an answer gives, or None."""
    number = read_number("", answer)
    legal = range(int(item.fields["low"]), int(item.fields["high"]) + 1)
    return int(number) if number is not None and number in legal else None


def score(items: Sequence[Item], answers: Sequence[str]) -> Scores:
    """Accuracy, and for each dimension the quadratic weighted kappa against the human grade, over readable answers."""
    scores = accuracy(items, answers)
    for dimension in _dimensions(items):
        pairs = [
            (item, given)
            for item, answer in pair_answers(items, answers)
            if item.dimension == dimension and item.gold and (given := grade(item, answer)) is not None
        ]
        if pairs:
            weights = cluster_weights([item.group for item, _ in pairs])
            human = [int(item.gold[0]) for item, _ in pairs]
            scores[_name(dimension)] = interval(quadratic_weighted_kappa, human, [given for _, given in pairs], weights)
    return scores


def chance(items: Sequence[Item]) -> dict[str, float]:
    """Evenly drawn grades agree with nobody's."""
    return guess_accuracy(items) | {_name(dimension): 0.0 for dimension in _dimensions(items)}


def _dimensions(items: Sequence[Item]) -> list[str]:
    return list(dict.fromkeys(item.dimension for item in items if item.gold))


def _name(dimension: str) -> str:
    return f"quadratic weighted kappa, {dimension}"
