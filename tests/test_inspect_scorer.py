"""Verdicts in a log of Inspect, by a real evaluation with its mock model. Runs where `inspect_ai` is installed."""

import json
from pathlib import Path
from typing import Any

import pytest

from metaprobe.probes.quality import QualityPredictor
from metaprobe.production.monitoring.log import ScoreLog

LOG = Path(__file__).parent / "logs" / "inspect" / "graded.json"


@pytest.mark.filterwarnings("ignore")
def test_an_evaluation_has_verdicts_beside_its_own_scores(tmp_path: Path) -> None:
    inspect_ai: Any = pytest.importorskip("inspect_ai")
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ModelOutput, ModelUsage, get_model
    from inspect_ai.scorer import match

    from metaprobe.production.inspect_scorer import verdict

    given = [sample["output"] for sample in json.loads(LOG.read_text())["samples"][:2]]
    outputs = [ModelOutput(**output) for output in given] + [ModelOutput.from_content("m", "4")]
    outputs[-1].usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)  # else it loads a tokenizer
    task = inspect_ai.Task(
        dataset=[Sample(id=n, input="?", target="4") for n in range(3)],
        scorer=[match(), verdict("bundled:quality", log=str(tmp_path / "scores.sqlite"))],
    )
    model = get_model("mockllm/model", custom_outputs=outputs)
    (log,) = inspect_ai.eval(
        task, model=model, max_connections=1, max_samples=1, log_dir=str(tmp_path), display="none", log_format="json"
    )
    assert log.status == "success", log.error
    scores = {sample.id: sample.scores["verdict"] for sample in log.samples}
    predictor = QualityPredictor.load("bundled:quality")
    entries = given[0]["choices"][0]["logprobs"]["content"][:1]
    assert scores[0].value == pytest.approx(predictor.predict([e["logprob"] for e in entries]).score, abs=1e-6)
    assert scores[0].metadata["score"] == scores[0].value
    assert scores[1].value != scores[1].value, "the numbers of another text were scored"
    assert "do not spell the answer" in scores[1].explanation
    assert "no log-probabilities" in scores[2].explanation
    with ScoreLog.open(str(tmp_path / "scores.sqlite")) as logged:
        kept = logged.columns().score
    assert sorted(kept[kept == kept]) == [pytest.approx(scores[0].value)]
    assert len(kept) == 3
