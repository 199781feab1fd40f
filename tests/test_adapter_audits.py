"""The audits of an adapter probe find what was planted, and name what they did not look for; nothing is trained."""

from dataclasses import replace

import numpy as np
import pytest
from tiny_adapter import stored

from metaprobe.eval import audits
from metaprobe.eval.audits import AuditReport
from metaprobe.eval.controls import ANSWER, JOINED, REVERSED, TERMS
from metaprobe.training.evidence import TextData, load_texts
from metaprobe.training.recipes.adapter import adapter_audits, control_scores
from metaprobe.training.recipes.lora import adapter_roles

AFTER = "adapter probe after the answer beats"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TextData:
    """320 answers: "easy" in the question tells most and the answer itself all."""
    return load_texts([stored(tmp_path_factory.mktemp("runs"))])


def audited(data: TextData, *, noise: float = 0.3) -> AuditReport:
    """Audits a probe that knows the labels but for some noise."""
    roles = adapter_roles(data.table)
    y = data.table.y[roles.test]
    scores = y + noise * np.random.default_rng(0).normal(size=len(y))
    return adapter_audits(data, roles, {"after": scores}, control_scores(data, roles, seed=0), seed=0)


def test_what_the_words_of_the_prompt_tell_is_held_against_the_probe(
    data: TextData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audits, "RESAMPLES", 1000)  # a correction over 14 controls looks far into the tails
    good, poor = ({a.name: a.passed for a in audited(data, noise=noise).audits} for noise in (0.3, 3.0))
    controls = {name.removeprefix(AFTER).removesuffix(REVERSED).strip() for name in good if name.startswith(AFTER)}
    free = {f"{which} log-probability" for which in ("mean", "minimum", "scaled", "first", "total")}
    free |= {"mean of the three lowest", "length", "length of the question"}
    assert controls == {"prompt TF-IDF", ANSWER, TERMS, JOINED} | free, "nothing was cut"
    asked = f"{AFTER} length of the question{REVERSED}"  # in the longer questions "easy" stands
    assert good[asked], "64 answers show it after Holm's correction over 14 controls; of TF-IDF, one less, they do not"
    assert not poor[asked]
    assert not poor[f"{AFTER} prompt TF-IDF"]
    assert not good[f"{AFTER} {ANSWER}"], "the answer's own words tell all"


def test_two_sources_that_disagree_are_told(data: TextData) -> None:
    rng, y = np.random.default_rng(1), data.table.y.astype(np.float64)
    coins = rng.integers(0, 2, len(y)).astype(np.float64)
    report = audited(replace(data, evidence=replace(data.evidence, labels_by_source={"judge:a": y, "judge:b": coins})))
    [found] = [audit for audit in report.audits if audit.name == "judge:a and judge:b agree"]
    assert (found.passed, found.severity) == (False, "invalid")
    assert f"of {len(y)} agree" in found.detail  # all of them, not only the test rows
    assert not any("label noise" in line for line in report.skipped)
    alike = audited(replace(data, evidence=replace(data.evidence, labels_by_source={"judge:a": y, "judge:b": y})))
    assert all(audit.passed for audit in alike.audits if "agree" in audit.name)


def test_without_questions_what_reads_them_is_named_as_not_made(data: TextData) -> None:
    table = replace(data.table, questions=np.full(len(data.table), ""))
    silent = replace(data, evidence=replace(data.evidence, table=table))
    report = audited(silent)
    assert not any("question" in audit.name or "prompt TF-IDF" in audit.name for audit in report.audits)
    for line in ("prompt TF-IDF: needs the questions' texts", "repeated, nearly repeated and reworded questions: need"):
        assert any(skipped.startswith(line) for skipped in report.skipped)
    assert any("splits share no group" in audit.name for audit in report.audits)


def test_labels_of_the_stores_are_kept_by_source(data: TextData) -> None:
    assert {name: values.tolist() for name, values in data.evidence.labels_by_source.items()} == {
        "program": data.table.y.tolist()
    }
