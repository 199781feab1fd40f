"""A checkpoint's description shows what matters, and one whose numbers cannot be believed warns when it is loaded."""

import dataclasses
import warnings
from pathlib import Path

import pytest
import spoilt_checkpoints
from spoilt_checkpoints import DRAFT, rewrite, save

from metaprobe.checkpoints import Audit, Draft, FlagPoint, Metric, UntrustedCheckpoint, describe, load_checkpoint
from metaprobe.checkpoints.manifest import MEANING

saved = spoilt_checkpoints.saved
folder = spoilt_checkpoints.folder

DOCS = Path(__file__).parents[1] / "docs"
ABSENT = Audit(True, "none", "invalid")
WEAK, INVALID = Audit(False, "as good", "weak"), Audit(False, "0.71", "invalid")
UNTRIED = Audit(False, "there is none", "unaudited")


def test_the_description_shows_what_a_checkpoint_is_worth_before_what_it_reads(tmp_path):
    share = Metric(0.6, 0.5, 0.7, 100)
    draft = dataclasses.replace(DRAFT, flagging=(FlagPoint(0.3, 0.4, caught=share, cost=share),))
    checkpoint = save(tmp_path / "c", draft)
    text = describe(checkpoint)
    for part in (
        "quality checkpoint", checkpoint.digest, "org/model", "features: float32 (any, 3)",
        "auroc 0.750 [0.710, 0.790] n = 1200", "correct = 0.5", "FAIL (weak)  cut answers: 0.71",
        "4000 rows in 700 groups", "full.min",
    ):  # fmt: skip
        assert part in text
    titles = [line.split()[0] for line in text.splitlines()[2:] if not line.startswith(" ")]
    assert titles[:4] == ["trust", "flagging", "metrics", "audits"]


def test_what_is_long_is_cut_and_what_is_absent_is_said(tmp_path):
    contract = {"six": [1, 2, 3, 4, 5, 6], "seven": [1, 2, 3, 4, 5, 6, 7], "long": "x" * 101}
    text = describe(save(tmp_path / "c", Draft(kind="choice", contract=contract)))
    for line in (
        "six: [1, 2, 3, 4, 5, 6]", "seven: 7 values, [1, 2, 3] ... [7]", "long: " + "x" * 100 + "...",
        "generator   any", "metrics     none",
    ):  # fmt: skip
        assert f"{line}\n" in text


def test_neither_description_nor_warning_can_steer_a_terminal(tmp_path, folder):
    text = describe(save(tmp_path / "c", Draft(kind="q\x1b[2J", contract={"a\r": "b\n"})))
    assert all(line.isprintable() for line in text.split("\n"))
    assert r"q\x1b[2J" in text
    rewrite(folder, lambda m: m["audits"].update({"x\x1b[2J": {"passed": False, "detail": "", "severity": "invalid"}}))
    with pytest.warns(UntrustedCheckpoint) as caught:
        load_checkpoint(folder)
    assert str(caught[0].message).isprintable()


def test_an_adapted_checkpoint_names_the_one_whose_audits_hold_for_its_order(tmp_path):
    """`trust sound: nothing was audited` contradicted itself."""
    adapted = dataclasses.replace(DRAFT, audits={}, contract={"adapted_from": "ab" * 32})
    text = describe(save(tmp_path / "c", adapted))
    assert "unaudited: adapted from checkpoint abababababab, whose audits hold for the order" in text


@pytest.mark.parametrize(
    ("audits", "trust", "weaknesses"),
    [
        ({}, "unaudited", ()),
        ({"overlap": ABSENT}, "sound", ()),
        ({"held against a control": UNTRIED, "overlap": ABSENT}, "unaudited", ("held against a control",)),
        ({"held against a control": UNTRIED, "length only": WEAK}, "weak", ("held against a control", "length only")),
        ({"length only": WEAK, "overlap": ABSENT}, "weak", ("length only",)),
        ({"length only": WEAK, "shuffled": INVALID, "overlap": ABSENT}, "invalid", ("length only", "shuffled")),
    ],
)
def test_only_numbers_that_cannot_be_believed_cause_a_warning_and_saving_never_does(
    tmp_path, audits, trust, weaknesses
):
    """A warning that is always there is read by nobody."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        save(tmp_path / "c", dataclasses.replace(DRAFT, audits=audits))
        assert caught == []
        loaded = load_checkpoint(tmp_path / "c")
    assert (loaded.trust, loaded.weaknesses) == (trust, weaknesses)
    shown = describe(loaded)
    assert f"trust       {trust}: " in shown
    assert all(f"FAIL ({audits[name].severity})  {name}" in shown for name in weaknesses)
    assert shown.startswith("NOT TRUSTWORTHY") is (trust == "invalid")
    if trust != "invalid":
        assert caught == []
        return
    assert [(one.category, one.filename) for one in caught] == [(UntrustedCheckpoint, __file__)]
    text = str(caught[0].message)
    assert f"cannot be believed (failed: shuffled); its numbers {MEANING['weak']} (failed: length only)" in text


CURVE = [["fixed number", 1.0, 1.0, 0.5], ["sure enough", 0.8, 1.74, 0.625], ["fixed number", 9.0, 9.0, 0.75]]
BUDGETS = [[1.0, [0], [1.0], 2.0, 0.5]], [[1.0, [1], [1.0], 4.0, 0.6]]


@pytest.mark.parametrize(
    ("contract", "rows"),
    [
        ({"stops": CURVE}, ["1.0 0.500 fixed number 1", "1.7 0.625 sure enough 0.8", "9.0 0.750 fixed number 9"]),
        (
            {
                "stops": [],
                "asks": {
                    "settings": dict(zip(("cascade", "table"), BUDGETS, strict=True)),
                    "budgets": [2.0 + step for step in range(15)],
                    "accuracy": {"cascade": [0.5] * 15, "table": [0.9, 0.9] + [0.6] * 13},
                },
            },
            # Below 4 dollars nobody can be asked by the table.
            ["2 0.500 cascade", *(f"{budget} 0.600 table" for budget in range(4, 17, 2))],
        ),
        ({"stops": [["fixed number"]]}, []),
        ({"stops": [], "asks": {"budgets": [], "settings": {}, "accuracy": {}}}, []),
    ],
)
def test_a_panel_shows_what_asking_on_is_worth(tmp_path, contract, rows):
    shown = describe(save(tmp_path / "c", Draft(kind="panel", contract={"pick": "joint", **contract})))
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "pick: joint" in lines
    assert ("asking on groups left out" in lines) is bool(rows)
    assert [line for line in lines if line and line[0].isdigit()] == rows


def test_where_scores_are_at_chance_the_line_says_what_that_is_about(tmp_path):
    chance, better = Metric(0.5, 0.4, 0.6, 90), Metric(0.7, 0.6, 0.8, 90)
    looks = {"look5.auroc": chance, "look20.auroc": better, "look50.auroc": chance}
    for kind, metrics, told in (
        ("gate", looks, {"look5": "too early to tell: later looks", "look50": "too few answers are that long"}),
        ("gate", {"look5.auroc": chance, "look20.auroc": chance}, {"look5": "check the labels"}),
        ("panel", {"kept_3.auroc": chance}, {"kept_3": "this is about telling right kept answers from wrong ones"}),
    ):
        lines = describe(save(tmp_path / f"{kind}{len(told)}", Draft(kind=kind, metrics=metrics))).splitlines()
        for head, sentence in told.items():
            at = next(at for at, line in enumerate(lines) if line.startswith(f"CHANCE      {head}:"))
            assert lines[at + 1].strip().startswith(sentence)


def test_the_guide_and_the_glossary_say_of_failed_audits_what_cards_say() -> None:
    guide = (DOCS / "train.md").read_text(encoding="utf-8")
    glossary = (DOCS / "glossary.md").read_text(encoding="utf-8")
    for kind, words in MEANING.items():
        assert f"| `{kind}` | the numbers {words}" in guide
        assert f"they {words}" in glossary
