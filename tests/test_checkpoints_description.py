"""A checkpoint's description shows what matters, and one that failed audits warns when it is loaded."""

import dataclasses

import pytest
import spoilt_checkpoints
from spoilt_checkpoints import DRAFT, rewrite, save

from metaprobe.checkpoints import (
    Audit,
    ContractMismatch,
    Draft,
    UntrustedCheckpoint,
    describe,
    load_checkpoint,
)

# Most tests here load one that failed an audit; the last section is about the warning.
pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")

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
    assert "cannot be believed (failed: shuffled labels); its figures are weaker than they look (failed: length" in text
    assert "group overlap" not in text
    assert caught[0].filename == __file__
    assert not written.trustworthy
    assert not loaded.trustworthy
    assert loaded.manifest.audits == MIXED
    shown = describe(loaded)
    assert shown.startswith("NOT TRUSTWORTHY: its figures cannot be believed")
    assert "FAIL (invalid)  shuffled labels" in shown


@pytest.mark.filterwarnings("error")
def test_saving_does_not_warn_and_passed_audits_never_do(tmp_path):
    save(tmp_path / "failed", dataclasses.replace(DRAFT, audits=MIXED))
    for name, audits in (("none", {}), ("passed", {"group overlap": Audit(True, "none", "invalid")})):
        save(tmp_path / name, dataclasses.replace(DRAFT, audits=audits))
        assert load_checkpoint(tmp_path / name).trustworthy
        assert describe(load_checkpoint(tmp_path / name)).startswith("quality checkpoint")


def test_a_manifest_from_before_severities_still_loads_as_weak(folder):
    def forget(manifest):
        for audit in manifest["audits"].values():
            del audit["severity"]

    rewrite(folder, forget)
    with pytest.warns(UntrustedCheckpoint, match="weaker than they look .failed: cut answers"):
        loaded = load_checkpoint(folder)
    assert loaded.manifest.audits["cut answers"].severity == "weak"


def test_an_unknown_severity_is_refused(folder):
    rewrite(folder, lambda m: m["audits"]["cut answers"].update(severity="fine"))
    with pytest.raises(ContractMismatch, match="'invalid' or 'weak', got 'fine'"):
        load_checkpoint(folder)


def test_the_warning_cannot_steer_a_terminal(folder):
    rewrite(folder, lambda m: m["audits"].update({"x\x1b[2J": {"passed": False, "detail": "", "severity": "weak"}}))
    with pytest.warns(UntrustedCheckpoint) as caught:
        load_checkpoint(folder)
    assert str(caught[0].message).isprintable()
