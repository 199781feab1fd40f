"""No sentence about a system stands without its controls: what planted runs may and may not be made to say."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from metaprobe.records.types import Call, Item, Label, Run, Sampling, Statement, Usage
from research.hidden import headline
from research.papers import page as reproduction
from research.papers.systems import over_ablations, over_self_refine

ROOT = Path(__file__).parent.parent

PROBLEMS = 120


def call_of(run_id: str, stage: str, number: int = 0, *, text: str = "", parent: str | None = None) -> Call:
    return Call(
        id=f"{run_id}/{stage}/{number}",
        stage=stage,
        round=number,
        parent=parent,
        model="planted",
        text=text,
        sampling=Sampling(),
        usage=Usage(1, 1),
    )


def loop_run(system: str, number: int, correct: Sequence[bool], good: Sequence[float]) -> Run:
    """A run whose answers are right or wrong, and evaluated, as given; the last one is returned."""
    identity = f"{system}/{number}"
    answers = [call_of(identity, "answer", place) for place in range(len(correct))]
    checks = [call_of(identity, "verify", place, parent=answer.id) for place, answer in enumerate(answers)]
    return Run(
        id=identity,
        system=system,
        variant="paper",
        item=Item(id=f"p{number:03}", question="?", check="number", gold=("1",)),
        calls=(*answers, *checks),
        statements=tuple(Statement(check.id, "coherence", value) for check, value in zip(checks, good, strict=True)),
        labels=tuple(
            Label(answer.id, "correct", float(right), "program") for answer, right in zip(answers, correct, strict=True)
        ),
        final_answer="",
        outcome=float(correct[-1]),
    )


def number_of(ours: list[Run], theirs: list[Run], same: Sequence[Run] = ()) -> dict[str, Any]:
    """Returns the number in the form of docs/measured/reproduction.json."""
    return json.loads(json.dumps(dataclasses.asdict(over_self_refine(7.0, ours, theirs, same))))


def test_loops_that_differ_only_in_the_solve_prompt_do_not_make_the_claim_hold() -> None:
    ours = [loop_run("monitor-generate-verify", n, (n % 2 == 0,), (1.0,)) for n in range(PROBLEMS)]
    theirs = [loop_run("self-refine", n, (n % 8 == 0,) * 2, (0.0, 1.0)) for n in range(PROBLEMS)]
    row = number_of(ours, theirs)
    assert row["here"][1] > 0.2  # so it held before the control
    assert reproduction.verdict(row) == "**falls to a control**"
    assert len(reproduction.killers(row)) == 2


def test_a_loop_that_mends_answers_of_the_same_prompt_holds_and_falls_to_another_loop_that_does_the_same() -> None:
    ours = [loop_run("monitor-generate-verify", n, (n % 4 == 0, n % 2 == 0), (0.0, 1.0)) for n in range(PROBLEMS)]
    theirs = [loop_run("self-refine", n, (n % 4 == 0,) * 2, (0.0, 1.0)) for n in range(PROBLEMS)]
    assert reproduction.verdict(number_of(ours, theirs)) == "holds"
    as_good = [dataclasses.replace(run, system="self-refine") for run in ours]
    row = number_of(ours, theirs, as_good)
    assert reproduction.killers(row) == ["the other loop from the same solve prompt"]
    assert reproduction.verdict(row) == "**falls to a control**"


def claim_run(number: int, gold: str, answers: dict[str, str]) -> Run:
    """A run of MetaCrit over one claim; `answers`: stage -> what it answers."""
    item = Item(id=f"c{number:03}", question="?", check="choice", choices=("true", "false"), gold=(gold,))
    calls = [call_of(f"m/{number}", stage, text=text) for stage, text in answers.items()]
    right = [float(text == f"Answer: {gold}") for text in answers.values()]
    labels = tuple(Label(call.id, "correct", one, "program") for call, one in zip(calls, right, strict=True))
    return Run(
        id=f"m/{number}",
        system="metacrit",
        variant="every-stage",
        item=item,
        calls=tuple(calls),
        labels=labels,
        final_answer=answers["final"].removeprefix("Answer: "),
        outcome=right[list(answers).index("final")],
    )


def test_a_stage_that_only_makes_answers_readable_does_not_make_the_claim_hold() -> None:
    paper = json.loads((ROOT / "docs" / "paper_numbers" / "metacrit.json").read_text(encoding="utf-8"))
    runs = []
    for number in range(PROBLEMS):
        gold = "true" if number % 2 else "false"
        known = f"Answer: {gold}" if number % 4 < 2 else f"Answer: {'false' if gold == 'true' else 'true'}"
        without = "I cannot say." if number % 3 else known
        runs.append(
            claim_run(
                number,
                gold,
                {
                    "answer": without,
                    "final": known,
                    "synthesis-without-monitor": without,
                    "synthesis-without-control": without,
                },
            )
        )
    figures = [dataclasses.asdict(one) for one in over_ablations(runs, [], paper) if one.sign]
    assert len(figures) == 2
    for row in figures:
        assert row["here"][1] > 0
        assert reproduction.verdict(row) == "**falls to a control**"
        assert "unreadable answers counted as half right" in reproduction.killers(row)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "holds"),
        ({"orders": [-0.01, 0.3]}, "depends on the order"),
        ({"orders": [0.1, 0.3]}, "holds"),
        ({"controls": [{"name": "a", "here": [0.1, -0.01, 0.2], "orders": None}]}, "**falls to a control**"),
        ({"controls": [{"name": "a", "here": [0.1, 0.01, 0.2], "orders": [-0.1, 0.2]}]}, "depends on the order"),
        ({"same": ""}, "not controlled"),
        ({"sign": -1}, "**the other way round**"),
        (
            {"sign": -1, "controls": [{"name": "a", "here": [0.0, -0.1, 0.1], "orders": None}]},
            "**falls to a control**",
        ),
    ],
)
def test_a_verdict_needs_every_order_and_every_control(change: dict[str, Any], expected: str) -> None:
    row = {"sign": 1, "here": [0.2, 0.1, 0.3], "orders": None, "controls": [], "same": "all"} | change
    assert reproduction.verdict(row) == expected


def test_every_claim_on_the_page_names_a_control_or_what_both_sides_share() -> None:
    found = json.loads(reproduction.FIGURES.read_text(encoding="utf-8"))
    claims = [row for section in found.values() for row in section["figures"] if row["sign"]]
    assert len(claims) > 20
    assert [row["what"] for row in claims if reproduction.verdict(row) == "not controlled"] == []
    over = [row for row in claims if row["what"].startswith("the full system over")]
    assert all(row["controls"] for row in over)


def test_the_lead_of_the_readme_goes_by_the_strongest_single_control() -> None:
    wide, narrow = [0.7, 0.6, 0.8], [0.9, 0.89, 0.91]
    methods = {"blend": {"auroc": narrow}, "length": {"auroc": wide}, "P(true)": {"auroc": [0.895, 0.885, 0.905]}}
    found = headline.gain_of("m/t", methods)
    assert (found.control, found.stands) == ("P(true)", False)
    assert headline.gain_of("m/t", {**methods, "P(true)": {"auroc": [0.8, 0.79, 0.81]}}).stands
