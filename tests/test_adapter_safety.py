"""Training an adapter deletes nothing of the user's, and stops where it leads nowhere."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result
from tiny_adapter import saved_base, stored, tiny, tiny_tokenizer
from transformers import LlamaForCausalLM

from metaprobe.cli import main
from metaprobe.eval import audits
from metaprobe.eval.audits import AuditReport
from metaprobe.eval.controls import ANSWER, JOINED, REVERSED, TERMS
from metaprobe.llms.base import LLMError
from metaprobe.probes.adapter import Encoder
from metaprobe.records.errors import RecordError
from metaprobe.training.adapter.adapter_recipe import adapter_audits, control_scores, write_adapter
from metaprobe.training.adapter.examples import adapter_roles, examples
from metaprobe.training.adapter.fit_lora import FittedAdapter, fit_adapter
from metaprobe.training.adapter.scorer import AdapterSettings
from metaprobe.training.adapter.unfinished import PARTIAL_FILE, STATE_FILE, check_work, remove_state
from metaprobe.training.text_data import TextData, load_texts
from metaprobe.training.training_options import AdapterOptions


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored(tmp_path_factory.mktemp("runs"), 120)


def trained(runs: Path, work: Path, network: LlamaForCausalLM, **settings: object) -> FittedAdapter:
    data = load_texts([runs])
    texts = examples(data, ["after"], Encoder(tiny_tokenizer().to_str().encode(), max_length=24))
    chosen = AdapterSettings(batch_size=16, max_length=24, **settings)  # type: ignore[arg-type]
    return fit_adapter(network.base_model, texts, data.table.y, adapter_roles(data.table), chosen, work=work)


def command(*arguments: object) -> Result:
    """In its own process's words: one line, and no traceback."""
    return CliRunner().invoke(main, ["train", "adapter", *map(str, arguments)])


def refused_in_one_line(result: Result) -> str:
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    [line] = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    return line


def test_a_folder_of_the_users_is_refused_before_anything_is_read_and_left_whole(runs: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    (project / "thesis.tex").write_text("years")
    line = refused_in_one_line(command(runs, "--out", tmp_path / "out", "--work", project, "--llm", "nothing at all"))
    assert f"{project} holds src, thesis.tex and no state of a training" in line
    assert (project / "thesis.tex").read_text() == "years"
    assert (project / "src").is_dir()


def test_a_folder_that_is_empty_or_holds_a_state_is_taken(tmp_path: Path) -> None:
    check_work(tmp_path / "none")
    check_work(tmp_path)
    (tmp_path / PARTIAL_FILE).write_bytes(b"killed in the first save")
    check_work(tmp_path)
    (tmp_path / STATE_FILE).write_bytes(b"")
    (tmp_path / "notes.txt").write_text("mine")
    check_work(tmp_path)
    with pytest.raises(RecordError, match=r"notes\.txt is a file"):
        check_work(tmp_path / "notes.txt")


def test_only_the_state_is_removed_and_the_folder_only_if_it_is_empty(tmp_path: Path) -> None:
    for name, others in (("own", []), ("shared", ["notes.txt"])):
        (tmp_path / name).mkdir()
        for file in (STATE_FILE, PARTIAL_FILE, *others):
            (tmp_path / name / file).write_bytes(b"x")
        remove_state(tmp_path / name)
    remove_state(tmp_path / "never made")
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["shared", "shared/notes.txt"]


def test_a_state_of_something_else_is_neither_taken_nor_replaced(runs: Path, tmp_path: Path) -> None:
    torch.save({"weights": torch.zeros(2)}, tmp_path / STATE_FILE)
    before = (tmp_path / STATE_FILE).read_bytes()
    with pytest.raises(RecordError, match="no state of an adapter training"):
        trained(runs, tmp_path, tiny(), epochs=1)
    assert (tmp_path / STATE_FILE).read_bytes() == before


def test_a_state_within_the_checkpoint_to_be_written_is_refused(runs: Path, tmp_path: Path) -> None:
    for work in (tmp_path / "out", tmp_path / "out" / "state"):
        with pytest.raises(RecordError, match="lies in the checkpoint"):
            write_adapter([runs], AdapterOptions(out=tmp_path / "out", llm="nothing at all", work=work))
    with pytest.raises(LLMError):  # by then the default folder, beside a path with a slash at its end, was taken
        write_adapter([runs], AdapterOptions(out=f"{tmp_path}/out/", llm="nothing at all"))


def test_a_training_that_diverges_stops_at_once_and_leaves_no_state(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(
        RecordError, match=r"the loss is (nan|inf) after \d of 48 steps.* lower the learning rate .*1e\+06"
    ):
        trained(runs, tmp_path / "work", tiny(), epochs=12, evaluations=3, lr=1e6)
    assert not (tmp_path / "work").exists()
    losses = trained(runs, tmp_path / "work", tiny(), epochs=1, lr=1e-3).losses
    assert np.isfinite(losses).all()  # or any training would be refused


def test_a_base_that_holds_nan_is_named_as_the_cause(runs: Path, tmp_path: Path) -> None:
    broken = tiny()
    with torch.no_grad():
        broken.base_model.layers[1].mlp.up_proj.weight[3, 3] = math.nan
    base = saved_base(tmp_path / "broken", broken)
    options = ["--llm", base, "--max-length", 24, "--epochs", 1]
    line = refused_in_one_line(command(runs, "--out", tmp_path / "out", *options))
    assert "the base model holds NaN or infinity, as in" in line
    assert "layers.1.mlp.up_proj" in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("lr", ["nan", "inf"])
def test_a_learning_rate_that_is_no_number_is_refused_at_the_door(runs: Path, tmp_path: Path, lr: str) -> None:
    line = refused_in_one_line(command(runs, "--out", tmp_path / "out", "--llm", "nothing at all", "--lr", lr))
    assert line == f"Error: the learning rate is {lr}; expected a finite number above 0"


@pytest.mark.parametrize("lr", [0.0, -1e-4, -math.inf])
def test_a_learning_rate_that_is_not_above_zero_is_refused(lr: float) -> None:
    with pytest.raises(RecordError, match="expected a finite number above 0"):
        AdapterSettings(lr=lr)


# The audits of an adapter probe find what was planted, and name what they did not look for; nothing is trained.


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
