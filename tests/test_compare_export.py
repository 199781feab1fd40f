"""A comparison exports the method that its report recommends, whatever that is, and no other."""

from pathlib import Path

import numpy as np
import pytest

from metaprobe import load
from metaprobe.eval.controls import CELLS, JOINED, PROMPT, REVERSED, STATED
from metaprobe.eval.report.words import recommended
from metaprobe.probes.blend import BlendPredictor
from metaprobe.probes.quality import QualityPredictor
from metaprobe.probes.text import TextReader
from metaprobe.records.errors import InvalidResponse, RecordError
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item, Label, Message, Run, Statement
from metaprobe.training.recipes.compare_runs import comparison, write_method
from metaprobe.training.stored_runs import load_runs
from metaprobe.training.study import Study, study

pytestmark = pytest.mark.filterwarnings("ignore::metaprobe.checkpoints.UntrustedCheckpoint")
WORDS = {True: ["sound", "firm", "clear"], False: ["perhaps", "maybe", "hazy"]}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """A study of answers whose words and log-probabilities each tell a part of what is right."""
    rng, runs = np.random.default_rng(4), []
    for i in range(240):
        sure, told = rng.normal(), rng.random() < 0.5
        right = bool(rng.random() < 1 / (1 + np.exp(-(2.2 * sure + 2.2 * (1 if told else -1)))))
        logprobs = (-rng.exponential(np.exp(-sure), size=int(rng.integers(4, 9)))).astype(np.float32)
        asked = (Message("user", f"question {i}"),)
        text = f"it is {rng.choice(WORDS[told])}"
        name = f"c{i}"
        call = Call(id=name, stage="answer", model="m", messages=asked, text=text, logprobs=logprobs)
        item = Item(id=name, question=f"question {i}", group=name, task="t")
        stated = (Statement(name, "confidence", float(np.clip(0.5 + 0.1 * sure + 0.1 * rng.normal(), 0, 1))),)
        labels = (Label(name, "correct", float(right), "program"),)
        runs.append(
            Run(f"r{i}", "test", "v", item, (call,), labels=labels, statements=stated, final_answer=text, outcome=right)
        )
    folder = tmp_path_factory.mktemp("compared")
    RunStore(folder / "runs").append(runs)
    return study([folder / "runs"], folds=2)


@pytest.mark.slow
def test_words_with_log_probabilities_are_recommended_named_and_written(made: Study, tmp_path: Path) -> None:
    compared = comparison(made, runs=load_runs(made.stores, warned=True), command="test")
    use = recommended(compared)
    assert use is not None
    assert use.name == JOINED
    assert "train text" in compared.exported
    assert "--with-logprobs" in compared.exported
    reader = load(write_method(tmp_path / "c", made, use.name, command="test").path)
    assert isinstance(reader, TextReader)
    assert reader.reads_logprobs
    low, high = [-3.0, -4.0, -2.0, -3.0], [-0.01, -0.02, -0.01, -0.02]
    scores = {
        (word, numbers[0]): reader.predict("question 1", f"it is {word}", numbers).score
        for word in ("firm", "hazy")
        for numbers in (low, high)
    }
    assert scores["firm", low[0]] < scores["firm", high[0]]
    assert scores["hazy", high[0]] < scores["firm", high[0]]
    with pytest.raises(InvalidResponse, match="log-probabilities"):
        reader.predict("question 1", "it is firm")


@pytest.mark.parametrize("name", ["minimum log-probability", f"length{REVERSED}"])
def test_a_free_number_is_written_as_the_predictor_of_that_number(made: Study, name: str, tmp_path: Path) -> None:
    written = write_method(tmp_path / "c", made, name, command="test")
    predictor = QualityPredictor.load(written.path, on_mismatch="ignore")
    rng = np.random.default_rng(0)
    series = [-rng.exponential(1.0, size=int(rng.integers(3, 12))) for _ in range(40)]
    scores = np.array([predictor.predict(one.tolist()).score for one in series], dtype=np.float64)
    number = np.array([one.min() for one in series] if "min" in name else [float(len(one)) for one in series])
    order = np.argsort(number, kind="stable")
    assert (np.diff(scores[order]) >= -1e-6).all(), "of one run the order is the number's"
    assert scores.max() > scores.min()


@pytest.mark.slow
def test_words_alone_stated_confidence_and_what_has_no_checkpoint(made: Study, tmp_path: Path) -> None:
    words = load(write_method(tmp_path / "words", made, PROMPT, command="test").path)
    assert isinstance(words, TextReader)
    assert not words.reads_logprobs
    assert words.predict("question 1", "it is firm").score is not None
    stated = load(write_method(tmp_path / "stated", made, STATED, command="test").path)
    assert isinstance(stated, BlendPredictor)
    low, high = (stated.predict([-0.1, -0.2], confidence=value).score for value in (0.1, 0.9))
    assert low is not None
    assert high is not None
    assert low < high
    with pytest.raises(RecordError, match="of which there is no checkpoint"):
        write_method(tmp_path / "cells", made, CELLS, command="test")
    assert not (tmp_path / "cells").exists()
