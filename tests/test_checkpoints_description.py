"""A checkpoint's description shows what matters, and one whose numbers cannot be believed warns when it is loaded."""

import dataclasses
import warnings

import pytest
import spoilt_checkpoints
from spoilt_checkpoints import DRAFT, rewrite, save

from metaprobe.checkpoints import (
    Audit,
    ContractMismatch,
    Draft,
    FlagPoint,
    Generator,
    Metric,
    UntrustedCheckpoint,
    describe,
    load_checkpoint,
)

saved = spoilt_checkpoints.saved
folder = spoilt_checkpoints.folder


# Reading about it


def test_the_description_shows_what_matters_and_failed_audits_loudly(folder):
    checkpoint = load_checkpoint(folder)
    text = describe(checkpoint)
    for part in (
        "quality checkpoint", checkpoint.digest, "org/model", "log-probabilities raw", "features: float32 (any, 3)",
        "auroc 0.750 [0.710, 0.790] n = 1200", "correct = 0.5", "isotonic", "1 FAILED",
        "FAIL (weak)  cut answers: 0.71",
        "pass  length only", "4000 rows in 700 groups", "full.min",
    ):  # fmt: skip
        assert part in text


def test_the_description_cannot_steer_a_terminal(tmp_path):
    text = describe(save(tmp_path / "c", Draft(kind="q\x1b[2J", contract={"a\r": "b\n"})))
    assert all(line.isprintable() for line in text.split("\n"))
    assert r"q\x1b[2J" in text


def test_a_bare_description_says_none(tmp_path):
    text = describe(save(tmp_path / "c", Draft(kind="choice")))
    assert "generator   any" in text
    assert "metrics     none" in text


def test_a_description_says_what_is_known_and_cuts_what_is_long(tmp_path):
    lists = {"six": [1, 2, 3, 4, 5, 6], "seven": [1, 2, 3, 4, 5, 6, 7], "text": "ü" * 100, "long": "x" * 101}
    draft = dataclasses.replace(
        DRAFT,
        contract=lists | {"keys": {"ü": 1}},
        generator=Generator("org/model", others=("org/other",)),
        training=dataclasses.replace(DRAFT.training, regrouped="by template"),
        audits={},
    )
    text = describe(save(tmp_path / "c", draft))
    for line in (
        "six: [1, 2, 3, 4, 5, 6]", "seven: 7 values, [1, 2, 3] ... [7]", "text: " + "ü" * 100,
        "long: " + "x" * 100 + "...", 'keys: {"ü": 1}', "generator   org/model, org/other",
        "seed 42\n            by template\n            data sha256:0123", "audits      none",
        "trust       unaudited: no audit was made",
    ):  # fmt: skip
        assert f"{line}\n" in text
    passed = dataclasses.replace(DRAFT, audits={"length only": Audit(True, "0.61 < 0.75")})
    text = describe(save(tmp_path / "passed", passed))
    assert "sound: no audit failed\n" in text
    assert "audits      all passed\n" in text
    assert text.startswith("quality checkpoint ")


def test_what_a_checkpoint_is_worth_comes_before_what_it_reads(tmp_path):
    share = Metric(0.6, 0.5, 0.7, 100)
    flagging = (FlagPoint(0.3, 0.4, caught=share, cost=share),)
    text = describe(save(tmp_path / "c", dataclasses.replace(DRAFT, flagging=flagging)))
    titles = [line.split()[0] for line in text.splitlines()[2:] if not line.startswith(" ")]
    assert titles[:4] == ["trust", "flagging", "metrics", "audits"]
    assert titles.index("audits") < titles.index("contract")


def test_an_adapted_checkpoint_names_the_one_whose_audits_hold_for_its_order(tmp_path):
    """`trust sound: nothing was audited` contradicted itself."""
    adapted = dataclasses.replace(DRAFT, audits={}, contract={"adapted_from": "ab" * 32})
    text = describe(save(tmp_path / "c", adapted))
    assert "trust       unaudited: adapted from checkpoint abababababab, whose audits hold for the order" in text
    odd = describe(save(tmp_path / "odd", dataclasses.replace(adapted, contract={"adapted_from": ["x"]})))
    assert "trust       unaudited: no audit was made\n" in odd


# Failed audits


MIXED = {
    "length only": Audit(False, "as good", "weak"),
    "shuffled labels": Audit(False, "0.71", "invalid"),
    "group overlap": Audit(True, "none", "invalid"),
}


def test_loading_one_that_failed_audits_warns_of_them_the_worse_first(tmp_path):
    written = save(tmp_path / "c", dataclasses.replace(DRAFT, audits=MIXED))
    with pytest.warns(UntrustedCheckpoint, match="NOT TRUSTWORTHY") as caught:
        loaded = load_checkpoint(tmp_path / "c")
    text = str(caught[0].message)
    assert "cannot be believed (failed: shuffled labels); its numbers are weaker than they look (failed: length" in text
    assert "group overlap" not in text
    assert caught[0].filename == __file__
    assert written.trust == loaded.trust == "invalid"
    assert loaded.weaknesses == ("length only", "shuffled labels")
    assert loaded.manifest.audits == MIXED
    shown = describe(loaded)
    assert shown.startswith("NOT TRUSTWORTHY: its numbers cannot be believed")
    assert "FAIL (invalid)  shuffled labels" in shown


@pytest.mark.filterwarnings("error")
def test_saving_does_not_warn_and_passed_audits_never_do(tmp_path):
    save(tmp_path / "failed", dataclasses.replace(DRAFT, audits=MIXED))
    for name, audits, trust, said in (
        ("none", {}, "unaudited", "unaudited: no audit was made"),
        ("passed", {"group overlap": Audit(True, "none", "invalid")}, "sound", "sound: no audit failed"),
    ):
        save(tmp_path / name, dataclasses.replace(DRAFT, audits=audits))
        loaded = load_checkpoint(tmp_path / name)
        assert (loaded.trust, loaded.weaknesses) == (trust, ())
        assert describe(loaded).startswith("quality checkpoint")
        assert f"trust       {said}" in describe(loaded)


@pytest.mark.filterwarnings("error")
def test_a_weak_checkpoint_is_loaded_in_silence_and_says_its_weaknesses_where_it_is_looked_at(tmp_path):
    """A warning that is always there is read by nobody."""
    weak = {name: audit for name, audit in MIXED.items() if name != "shuffled labels"}
    save(tmp_path / "c", dataclasses.replace(DRAFT, audits=weak))
    loaded = load_checkpoint(tmp_path / "c")
    assert (loaded.trust, loaded.weaknesses) == ("weak", ("length only",))
    shown = describe(loaded)
    assert "NOT TRUSTWORTHY" not in shown
    assert "trust       weak: its numbers are weaker than they look (failed: length only)" in shown
    assert "FAIL (weak)  length only" in shown


def test_an_invalid_checkpoint_warns_exactly_once(tmp_path):
    save(tmp_path / "c", dataclasses.replace(DRAFT, audits=MIXED))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        load_checkpoint(tmp_path / "c")
    assert [(warning.category, warning.filename) for warning in caught] == [(UntrustedCheckpoint, __file__)]


def test_an_unknown_severity_is_refused(folder):
    rewrite(folder, lambda m: m["audits"]["cut answers"].update(severity="fine"))
    with pytest.raises(ContractMismatch, match="'invalid' or 'weak', got 'fine'"):
        load_checkpoint(folder)


def test_the_warning_cannot_steer_a_terminal(folder):
    rewrite(folder, lambda m: m["audits"].update({"x\x1b[2J": {"passed": False, "detail": "", "severity": "invalid"}}))
    with pytest.warns(UntrustedCheckpoint) as caught:
        load_checkpoint(folder)
    assert str(caught[0].message).isprintable()
