"""LoggedAgreement of second answers in a score log: drift, training and deletion read it, and no estimate counts it."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import logged_entries
import numpy as np
import pytest
from click.testing import CliRunner

from metaprobe.cli import main
from metaprobe.probes.quality import QualityPredictor
from metaprobe.production.monitoring.drift import USUAL_STREAMS, WATCHED_STREAMS
from metaprobe.production.monitoring.drift_of_log import kept_watch
from metaprobe.production.monitoring.entry import Entry
from metaprobe.production.monitoring.estimates import estimate_log
from metaprobe.production.monitoring.log import FeedbackLabel, LoggedAgreement, ScoreLog, labelled_of_log
from metaprobe.records.errors import RecordError

server, where = logged_entries.server, logged_entries.where


def fill(
    path: Path | str, same: Any, *, logprobs: Any = None, start: float = 1.7e9, model: str = "m", tags: Any = None
) -> None:
    """Logs an answer, of these tags, with an agreement for each of `same` (n,), a minute apart."""
    with ScoreLog.open(path) as log:
        for number, one in enumerate(same):
            values = None if logprobs is None else logprobs[number]
            when = start + 60 * number
            log.write(
                Entry(
                    request_id=f"r{start:.0f}-{number}",
                    time=when,
                    model=model,
                    checkpoint="c",
                    tags={} if tags is None else tags[number],
                    score=0.5,
                    finish_reason="stop",
                    tokens=5,
                    logprobs=values,
                )
            )
            if one is not None:
                log.add_agreement(LoggedAgreement(f"r{start:.0f}-{number}", bool(one), when + 1))
        assert log.flush()


def test_agreements_are_no_labels(tmp_path: Path) -> None:
    fill(tmp_path / "log.sqlite", [1, 0] * 30)
    with ScoreLog.open(tmp_path / "log.sqlite", entries=False) as log:
        assert log.current_labels() == []
        lines = estimate_log(log.columns())
        assert {line["labels"] for line in lines if line["method"] != "scores"} == {0}
        assert len(log.agreements()[0]) == 60


def test_drift_gives_an_alarm_without_a_label_where_agreement_falls(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "log.sqlite"
    fill(path, rng.random(400) < 0.8)
    with (
        ScoreLog.open(path, entries=False) as log,
        kept_watch(tmp_path / "state", streams=WATCHED_STREAMS) as watch,
    ):
        assert watch.read(log) == []
    fill(path, rng.random(300) < 0.3, start=1.8e9)
    told = CliRunner().invoke(main, ["drift", "--log", str(path), "--state", str(tmp_path / "state"), "--json"])
    assert told.exit_code == 3, told.output
    [alarm] = [json.loads(line) for line in told.stdout.splitlines()]
    assert (alarm["stream"], alarm["moved"], alarm["what"]) == ("agreement", "lower", "mean agreement")
    assert alarm["after"] < 0.5 < alarm["before"]
    assert "of the latest 100 second answers" in told.stderr


def test_a_watch_that_began_without_agreements_keeps_its_streams_and_says_so(tmp_path: Path) -> None:
    path, state = tmp_path / "log.sqlite", tmp_path / "state"
    fill(path, [None] * 3)
    command = ["drift", "--log", str(path), "--state", str(state)]
    assert "second answers" not in CliRunner().invoke(main, command).stderr
    fill(path, [1] * 3, start=1.8e9)
    assert "begin a new state file to watch it" in CliRunner().invoke(main, command).stderr
    with kept_watch(state) as watch:
        assert watch.watch.names == USUAL_STREAMS


def test_drift_says_the_agreement_of_the_model_that_the_state_watches(tmp_path: Path) -> None:
    path, state = tmp_path / "log.sqlite", tmp_path / "state"
    fill(path, [1] * 5)
    fill(path, [0] * 5, start=1.8e9, model="other")
    command = ["drift", "--log", str(path), "--state", str(state)]
    for more in (["--model", "m"], []):  # the second call takes the model from the state
        assert "agreement 1.00 of the latest 5 second" in CliRunner().invoke(main, [*command, *more]).stderr


def test_agreement_is_compared_within_the_tag_that_answers_are_compared_within(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    path = tmp_path / "log.sqlite"
    easy = np.append(rng.random(400) < 0.9, rng.random(400) < 0.1)  # the mix changes, and nothing within a task
    same = rng.random(800) < np.where(easy, 0.9, 0.2)
    fill(path, same, tags=[{"kind": "easy" if one else "hard"} for one in easy])

    def streams_with_an_alarm(within: str | None) -> list[str]:
        state = tmp_path / f"state-{within}"
        with (
            ScoreLog.open(path, entries=False) as log,
            kept_watch(state, within=within, streams=["agreement"]) as watch,
        ):
            return [alarm["stream"] for alarm in watch.read(log)]

    assert streams_with_an_alarm(None) == ["agreement"]
    assert streams_with_an_alarm("kind") == []


def planted(answers: int) -> tuple[list[bool], list[list[float]]]:
    """Returns agreements and log-probabilities of answers that are said again the likelier, the surer they are."""
    rng = np.random.default_rng(1)
    sure = rng.uniform(0.1, 0.95, answers)
    logprobs = [np.log(np.clip(p + rng.normal(0, 0.05, 6), 0.02, 0.99)).tolist() for p in sure]
    return (rng.random(answers) < sure).tolist(), logprobs


def test_retrain_learns_from_the_agreements_of_a_log(tmp_path: Path) -> None:
    path, out = tmp_path / "log.sqlite", tmp_path / "out"
    same, logprobs = planted(160)
    fill(path, same, logprobs=logprobs)
    told = CliRunner().invoke(main, ["retrain", "--log", str(path), "--target", "agreement", "--out", str(out)])
    assert told.exit_code == 0, told.output
    assert "112 answers of the log that were asked for again; 48 later ones are left for `promote`" in told.stderr
    predictor = QualityPredictor.load(out)
    response = {"choices": [{"message": {"content": "x"}, "finish_reason": "stop", "index": 0}], "model": "m"}

    def agreement_of(logprob: float) -> float:
        entries = [{"token": "x", "logprob": logprob, "top_logprobs": []}]
        choice = {**response["choices"][0], "logprobs": {"content": entries}}  # type: ignore[index]
        verdict = predictor.predict({**response, "choices": [choice]})
        assert verdict.score is None
        assert verdict.agreement is not None
        return verdict.agreement

    assert agreement_of(-0.1) > agreement_of(-2.0)


def test_retrain_on_agreement_says_what_the_log_lacks(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    fill(path, [None] * 3)
    command = ["retrain", "--log", str(path), "--target", "agreement", "--out", str(tmp_path / "out")]
    assert "serve with --teach-rate" in CliRunner().invoke(main, command).output
    for words, message in ((["--target", "q"], "expected correct or agreement"), ([str(tmp_path)], "leave RUNS out")):
        assert message in " ".join(CliRunner().invoke(main, [*command, *words]).output.split())
    fill(path, [1] * 30, start=1.8e9)
    assert "log-probabilities of none" in CliRunner().invoke(main, command).output


def test_a_log_of_an_earlier_version_gets_the_table_and_keeps_its_answers(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    fill(path, [None] * 2)
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE agreements")
    database.close()
    with ScoreLog.open(path) as log:
        log.add_agreement(LoggedAgreement("r1700000000-0", True, 1.7e9))
        assert [one.same for one in log.agreements()[0]] == [True]
        assert len(log.columns()) == 2


def test_the_agreement_goes_with_its_request(where: str) -> None:
    fill(where, [1, 0])
    with ScoreLog.open(where) as log:
        assert log.delete_all(["r1700000000-0"]) == []
        assert log.tables.read("SELECT request_id FROM agreements") == [("r1700000000-1",)]
        assert log.prune(1, sure=True) == 1
        assert log.tables.read("SELECT request_id FROM agreements") == []


def test_agreements_are_read_once_and_by_model_and_version(where: str) -> None:
    fill(where, [1, 0, 1])
    with ScoreLog.open(where) as log:
        log.add_agreement(LoggedAgreement("r1700000000-0", False, 1.7e9))  # the first one stays
        log.add_agreement(LoggedAgreement("never-logged", True, 1.7e9))
        found, last = log.agreements()
        assert [one.same for one in found] == [True, False, True]
        assert ([one.number for one in found], last) == ([1, 2, 3], 5)
        assert log.has_agreements(model="m", checkpoint="c")
        assert not log.has_agreements(model="other")
        assert len(log.agreements(model="m", checkpoint="c", since=1.7e9 + 60)[0]) == 2
        assert log.agreements(model="other")[0] == []


def test_drift_reads_the_agreements_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "log.sqlite", [1, 0] * 150)
    read, calls = ScoreLog.agreements, 0

    def counted(self: ScoreLog, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        return read(self, **options)

    monkeypatch.setattr(ScoreLog, "agreements", counted)
    command = ["drift", "--log", str(tmp_path / "log.sqlite"), "--state", str(tmp_path / "state")]
    told = CliRunner().invoke(main, command)
    assert told.exit_code == 0, told.output
    assert "agreement 0.50 of the latest 100 second answers, 0.50 of the 200 before" in told.stderr
    assert calls == 1


def test_too_few_agreements_are_counted_in_the_error(tmp_path: Path) -> None:
    path = tmp_path / "log.sqlite"
    same, logprobs = planted(12)
    fill(path, same, logprobs=logprobs)
    command = ["retrain", "--log", str(path), "--target", "agreement", "--out", str(tmp_path / "out")]
    told = CliRunner().invoke(main, command)
    assert "8 questions have two answers" in told.output
    assert "holds 4 more, held back (hold_back=0.3)" in told.output
    told = CliRunner().invoke(main, [*command, "--hold-back", "0"])
    assert "12 questions have two answers" in told.output
    assert "expected at least 20" in f"{told.output}{told.exception}"


def test_recalibration_says_that_a_checkpoint_without_a_score_has_labels_and_needs_adapt(tmp_path: Path) -> None:
    with ScoreLog.open(tmp_path / "log.sqlite") as log:
        for number in range(30):
            log.write(Entry(request_id=f"r{number}", time=1.7e9 + number, model="m", checkpoint="c", score=None))
        assert log.flush()
        log.add_labels([FeedbackLabel(f"r{number}", float(number % 2)) for number in range(30)])
        with pytest.raises(RecordError, match="gave no score to the 30 labelled answers that it judged"):
            labelled_of_log(log, checkpoint="c")
        with pytest.raises(RecordError, match="labelled are 0 answers"):
            labelled_of_log(log, checkpoint="other")
