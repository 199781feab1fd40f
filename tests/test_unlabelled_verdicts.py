"""A checkpoint that was trained without labels gives no score: that is neither an error nor 0 anywhere."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import serving_clients
from click.testing import CliRunner
from served import KEY, Upstream
from serving_clients import Served, serving, verdict_in, verdict_of
from tiny import tiny_quality
from tiny_agreement import SURE, UNSURE, tiny_agreement

from metaprobe.checkpoints import ContractMismatch
from metaprobe.cli import main
from metaprobe.probes.quality import QualityPredictor
from metaprobe.probes.scored_answer import Scored
from metaprobe.production.cascade import Cascade, Tier
from metaprobe.production.evaluation_events import named_value
from metaprobe.production.monitoring.entry import Entry
from metaprobe.production.monitoring.estimates import estimate_accuracy
from metaprobe.production.monitoring.log import ScoreLog
from metaprobe.production.monitoring.overview import Span, flagged_queue, overview
from metaprobe.production.verdict_export import REQUEST_MAKERS, log_verdicts
from metaprobe.records.errors import RecordError

callers_keys = serving_clients.callers_keys
upstream = serving_clients.upstream


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_agreement(tmp_path_factory.mktemp("checkpoints") / "taught").path


@pytest.fixture(scope="module")
def predictor(taught: Path) -> QualityPredictor:
    return QualityPredictor.load(taught)


def test_a_verdict_has_an_agreement_and_a_flag_and_no_score(predictor: QualityPredictor) -> None:
    sure, unsure = predictor.predict(SURE), predictor.predict(UNSURE)
    assert sure.score is unsure.score is None
    assert sure.agreement is not None
    assert unsure.agreement is not None
    assert sure.agreement > 0.4 > unsure.agreement
    assert (sure.flagged, unsure.flagged) == (False, True)
    assert "agreement=0." in repr(sure)
    assert predictor.score_head is None


@pytest.mark.parametrize(("end", "agrees"), [("length", False), ("stop", True), (None, True), ("aborted", True)])
def test_an_answer_that_its_limit_cut_agrees_with_none(
    predictor: QualityPredictor, end: str | None, agrees: bool
) -> None:
    verdict = predictor.predict({"answer": "a b c d", "logprobs": SURE, "finish_reason": end})
    [many] = predictor.predict_many([{"answer": "a b c d", "logprobs": SURE, "finish_reason": end}])
    assert many == verdict
    assert verdict.agreement is not None
    assert (verdict.agreement > 0.4) == agrees
    assert verdict.flagged == (not agrees)
    if not agrees:
        assert verdict.agreement == 0.0
        assert "agreement is 0" in verdict.reason


def test_a_cut_answer_keeps_its_score(tmp_path: Path) -> None:
    predictor = QualityPredictor.load(tiny_quality(tmp_path / "quality").path, on_mismatch="ignore")
    cut = predictor.predict({"answer": "a b c d", "logprobs": SURE, "finish_reason": "length"})
    assert cut.score == predictor.predict(SURE).score
    assert "agreement" not in cut.reason


@pytest.mark.parametrize("option", ["catch", "risk"])
def test_a_promise_about_wrong_answers_takes_labels(taught: Path, option: str, tmp_path: Path) -> None:
    with pytest.raises(ContractMismatch, match=r"0 labels came; expected at least \d+ labelled"):
        QualityPredictor.load(taught, **{option: 0.3})
    lines = tmp_path / "answers.jsonl"
    lines.write_text(json.dumps({"answer": "a b c d", "logprobs": SURE}) + "\n")
    refused = CliRunner().invoke(main, ["score", str(taught), str(lines), f"--{option}", "0.3"])
    assert refused.exit_code == 1
    assert "adapt" in refused.output


def test_a_rate_and_a_bound_set_the_threshold(taught: Path) -> None:
    assert QualityPredictor.load(taught, flag_rate=0.05).threshold == pytest.approx(0.25)
    assert QualityPredictor.load(taught, flag_below=0.9).predict(SURE).flagged is True


def test_scored_lines_have_null_and_the_head_and_end_well(taught: Path, tmp_path: Path) -> None:
    lines = tmp_path / "answers.jsonl"
    lines.write_text("".join(json.dumps({"answer": "a b c d", "logprobs": one}) + "\n" for one in (SURE, UNSURE)))
    result = CliRunner().invoke(main, ["score", str(taught), str(lines)])
    assert result.exit_code == 0
    assert result.stderr == "flagged 1 of 2 lines; of 0 it is not known\n"
    sure, unsure = map(json.loads, result.stdout.splitlines())
    assert sure["score"] is unsure["score"] is None
    assert (sure["flagged"], unsure["flagged"]) == (False, True)
    assert list(sure["heads"]) == ["agreement"]


@pytest.fixture(scope="module")
def served(
    taught: Path, upstream: tuple[Upstream, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Served, Path]]:
    log = tmp_path_factory.mktemp("log") / "scores.sqlite"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("METAPROBE_API_KEY", KEY)
        with serving(taught, upstream[1], log=str(log)) as client:
            yield client, log


def test_the_server_hands_agreement_on_logs_it_and_counts_its_flags(served: tuple[Served, Path]) -> None:
    client, path = served
    alone = client.post("/v1/score", {"answer": "a b c d", "logprobs": UNSURE})
    assert alone.status_code == 200
    assert alone.json()["score"] is None
    assert alone.json()["flagged"] is True
    answer = client.chat("plain")
    verdict = verdict_of(answer)
    assert verdict["score"] is None
    assert 0 < verdict["heads"]["agreement"] < 1
    assert verdict["flagged"] is not None
    streamed = verdict_in(client.chat("plain", stream=True))
    assert streamed["heads"] == pytest.approx(verdict["heads"])
    metrics = client.get("/metrics", authorization=f"Bearer {KEY}").text
    counted = {line.split(" ")[0]: float(line.split(" ")[1]) for line in metrics.splitlines() if line[:1] not in "# "}
    assert counted["metaprobe_abstained_total"] == 0
    assert counted["metaprobe_flagged_total"] >= 1
    with ScoreLog.open(path, entries=False) as log:
        for _ in range(1200):
            client.post("/v1/feedback", {"feedback": []})  # waits until the server has stored what it took
            if (entry := log.entry(verdict["request_id"])) is not None:
                break
            time.sleep(0.05)
        assert entry is not None
        assert entry.score is None
        assert entry.heads == pytest.approx(verdict["heads"])
        assert entry.flagged == verdict["flagged"]


@pytest.fixture(scope="module")
def path(predictor: QualityPredictor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of 60 verdicts, a third of them flagged, 40 labelled and half of these right."""
    path = tmp_path_factory.mktemp("log") / "scores.sqlite"
    sure, unsure = predictor.predict(SURE), predictor.predict(UNSURE)
    now = time.time()
    with ScoreLog.open(path) as log:
        for number in range(60):
            verdict = sure if number % 3 else unsure
            log.write(
                Entry(
                    request_id=f"r{number}",
                    time=now - 9000 + number,
                    model="m",
                    checkpoint=verdict.checkpoint,
                    score=verdict.score,
                    flagged=verdict.flagged,
                    heads=verdict.heads,
                )
            )
        assert log.flush()
        for number in range(40):
            log.label(f"r{number}", number % 2, who="ada")
    return path


def test_the_dashboard_counts_flags_and_lists_the_flagged_by_their_agreement(path: Path) -> None:
    now = time.time()
    with ScoreLog.open(path, entries=False) as log:
        found = overview(log, Span(now - 86400, now))
        queue = flagged_queue(log, Span(now - 86400, now))
    assert (found["totals"]["answers"], found["totals"]["flagged"]) == (60, 20)
    [version] = found["versions"]
    assert version["accuracy"]["scores"]["value"] is None
    assert version["accuracy"]["labelled"]["value"] == pytest.approx(0.5)
    assert sum(one["answers"] for one in version["histogram"]) == 0
    assert len(queue) == 6  # 20 are flagged, and 14 of these are labelled
    assert {one["score"] for one in queue} == {None}
    assert all(0 < one["agreement"] < 0.4 for one in queue)


def test_an_estimate_from_scores_is_none_where_no_answer_has_one(path: Path) -> None:
    result = CliRunner().invoke(main, ["estimate", "--log", str(path), "--json"])
    assert result.exit_code == 0, result.output
    of = {(line["of"], line["method"]): line for line in map(json.loads, result.stdout.splitlines())}
    assert of["accuracy", "scores"]["value"] is None
    assert "only labels" in of["accuracy", "scores"]["reason"]
    assert of["accuracy", "labelled"]["value"] == pytest.approx(0.5)
    assert of["flagged", "counted"]["value"] == pytest.approx(1 / 3)


def test_labels_alone_say_what_they_would_say_without_scores() -> None:
    labels = np.repeat([0.0, 1.0], 30)
    scores, powered, labelled = estimate_accuracy(np.full(60, np.nan), labels, np.full(60, np.nan))
    assert np.isnan(scores.value)
    assert powered.value == labelled.value == 0.5


def test_drift_reads_a_log_without_scores_and_labels_do_not_move_it(path: Path, tmp_path: Path) -> None:
    state = tmp_path / "state.json"
    words = ["drift", "--log", str(path), "--state", str(state)]
    for _ in range(2):
        result = CliRunner().invoke(main, words)
        assert result.exit_code == 0, result.output
    assert "NaN" not in state.read_text()


def test_answers_can_be_drawn_for_labels(path: Path, tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.jsonl"
    result = CliRunner().invoke(main, ["sample", "--log", str(path), "--budget", "10", "--out", str(sheet)])
    assert result.exit_code == 0, result.output
    assert len(sheet.read_text().splitlines()) > 0


@pytest.mark.parametrize(("to", "name"), [("langfuse", "name"), ("mlflow", "assessment_name"), ("otel", "stringValue")])
def test_exports_name_the_number_agreement(path: Path, to: Any, name: str) -> None:
    with ScoreLog.open(path, entries=False) as log:
        [first, *_] = REQUEST_MAKERS[to](log.entries(), "")
    told = json.dumps(first.body)
    assert f'"{name}": "metaprobe.agreement"' in told
    assert "not_scored" not in told


def test_a_score_goes_before_agreement_under_its_own_name() -> None:
    assert named_value("metaprobe", 0.3, {"agreement": 0.9}) == ("metaprobe", 0.3)
    assert named_value("metaprobe", None, {"agreement": 0.9}) == ("metaprobe.agreement", 0.9)
    assert named_value("metaprobe", None, {}) == ("metaprobe", None)


def test_a_callback_logs_the_head(predictor: QualityPredictor, tmp_path: Path) -> None:
    scored = Scored.of(predictor, {"answer": "a b c d", "logprobs": SURE})
    with ScoreLog.open(tmp_path / "scores.sqlite") as log:
        log_verdicts(log)(scored)
        assert log.flush()
        [entry] = log.entries()
    assert entry.score is None
    assert list(entry.heads) == ["agreement"]


def test_a_cascade_by_agreement_alone_is_refused(predictor: QualityPredictor) -> None:
    client = SimpleNamespace(chat=SimpleNamespace(completions=None))
    with pytest.raises(RecordError, match="gives no score"):
        Cascade(Tier(client, "weak"), Tier(client, "strong"), predictor)
