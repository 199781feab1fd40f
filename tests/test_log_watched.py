"""A score log from the command line: estimated, watched for drift, and with a threshold that follows its labels."""

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from local_server import Asked, Reply, serving

from metaprobe.cli import main
from metaprobe.production.monitoring.drift import LABEL_STREAM, Alarm, key_of
from metaprobe.production.monitoring.drift_of_log import DRIFT_EVENT, LogWatch, kept_watch, measure_move
from metaprobe.production.monitoring.entry import Entry
from metaprobe.production.monitoring.label_draw import draw_sheet
from metaprobe.production.monitoring.log import FeedbackLabel, ScoreLog
from metaprobe.records.errors import RecordError

BEGIN = 1762732800.0
CHECKPOINT = "c" * 64
SCORES, LABELS = key_of("score", CHECKPOINT), key_of(LABEL_STREAM, CHECKPOINT)
ALARM = 3
"""The exit code of an alarm."""


def run(*words: object) -> Result:
    return CliRunner().invoke(main, list(map(str, words)))


def write(
    log: ScoreLog,
    n: int,
    *,
    first: int = 0,
    seed: int = 0,
    longer: float = 1.0,
    off: float = 0.0,
    checkpoint: str = CHECKPOINT,
    labels: float = 0.0,
    power: float = 1.0,
) -> None:
    """n answers a minute apart, a share `labels` of them labelled; the share right is `off` less than the score."""
    rng = np.random.default_rng([seed, first])
    p = rng.beta(5, 2, n) ** power
    said = []
    for i in range(n):
        log.write(
            Entry(
                request_id=f"r{first + i}",
                time=BEGIN + 60 * (first + i),
                model="big" if rng.random() < 0.7 else "small",
                checkpoint=checkpoint,
                score=float(p[i]),
                flagged=bool(p[i] < 0.5),
                tokens=int(rng.integers(20, 200) * longer),
                finish_reason="stop",
                tags={"task": "faq" if rng.random() < 0.5 else "sums", "prompt": "v1" if first + i < 500 else "v2"},
            )
        )
        if rng.random() < labels:
            at = BEGIN + 60 * (first + i) + 5
            said.append(FeedbackLabel(f"r{first + i}", float(rng.random() < p[i] - off), "ada", at))
    assert log.flush()
    log.add_labels(said)


def write_one(log: ScoreLog, name: str, at: float) -> None:
    log.write(Entry(request_id=name, time=at, model="big", checkpoint=CHECKPOINT, score=0.7))
    assert log.flush()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("written") / "log.sqlite"
    with ScoreLog.open(path) as log:
        write(log, 1000, labels=0.2)
    return path


@pytest.fixture
def url(written: Path, tmp_path: Path) -> Path:
    """A log of its own with the same answers."""
    return Path(shutil.copy(written, tmp_path))


def lines(done: Result, code: int = 0) -> list[dict[str, object]]:
    assert done.exit_code == code, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_estimates_are_of_the_whole_log_or_of_its_parts(url: Path) -> None:
    whole = lines(run("estimate", "--json", "--log", url))
    assert [(line["of"], line["method"]) for line in whole] == [
        ("accuracy", "scores"),
        ("accuracy", "powered"),
        ("accuracy", "labelled"),
        ("flagged", "counted"),
        ("risk", "scores"),
        ("risk", "powered"),
        ("risk", "labelled"),
    ]
    assert all(line["part"] == "all" for line in whole)
    truth = 5 / 7
    assert all(line["low"] < truth < line["high"] for line in whole[:3])  # type: ignore[operator]
    assert whole[1]["rows"] == 1000
    assert whole[1]["labels"] == pytest.approx(200, abs=40)
    by = {
        name: {line["part"] for line in lines(run("estimate", "--json", "--log", url, "--by", name))}
        for name in ("model", "task", "prompt", "week")
    }
    assert by["model"] == {"big", "small"}
    assert by["task"] == {"faq", "sums"}
    assert by["prompt"] == {"v1", "v2"}
    assert by["week"] == {"2025-W46"}
    some = lines(run("estimate", "--json", "--log", url, "--model", "small", "--since", "2025-11-10T12:00:00"))
    assert 60 < int(str(some[0]["rows"])) < 110  # of 280


def test_answers_to_one_question_or_of_one_tag_are_counted_together(tmp_path: Path) -> None:
    where, rng = tmp_path / "log.sqlite", np.random.default_rng(0)
    with ScoreLog.open(where) as log:
        for i in range(300):
            question = f"question {i // 30}"
            tags = {"talk": f"t{i // 30}"}
            given = {"model": "m", "checkpoint": CHECKPOINT, "score": 0.5, "question": question, "tags": tags}
            log.write(Entry(request_id=f"r{i}", time=BEGIN + i, **given))  # type: ignore[arg-type]
        assert log.flush()
        log.add_labels([FeedbackLabel(f"r{i}", float((i // 30) % 2), "ada") for i in range(300) if rng.random() < 0.5])
    plain, talk, question = (
        lines(run("estimate", "--json", "--log", where, *more))
        for more in ([], ["--group", "talk"], ["--group", "question"])
    )
    assert talk == question
    assert [one["value"] for one in talk] == [one["value"] for one in plain]
    width = [float(str(one[2]["high"])) - float(str(one[2]["low"])) for one in (plain, talk)]
    assert width[1] > 3 * width[0], "thirty answers to one question are all right or all wrong"
    refused = run("estimate", "--log", where, "--group", "nothing")
    assert (refused.exit_code, "no answer of the log has a tag 'nothing'" in refused.output) == (1, True)


def test_a_change_rings_once_is_stored_and_what_was_read_is_not_read_again(url: Path) -> None:
    state = url.with_name("drift.json")
    first = run("drift", "--log", url, "--state", state)
    assert (first.exit_code, first.stdout) == (0, "")
    assert "no alarm; most evidence" in first.stderr
    with ScoreLog.open(url) as log:
        write(log, 300, first=1000, longer=2.0)
    [alarm] = lines(run("drift", "--json", "--log", url, "--state", state), ALARM)
    assert (alarm["stream"], alarm["moved"], alarm["what"]) == ("tokens", "higher", "mean tokens")
    assert alarm["before"] == pytest.approx(110, rel=0.1)
    assert alarm["after"] == pytest.approx(220, rel=0.15)
    assert abs(float(str(alarm["began"])) - (BEGIN + 60_000)) < 60 * 60
    assert run("drift", "--log", url, "--state", state).stdout == ""
    with ScoreLog.open(url) as log:
        [event] = log.events(DRIFT_EVENT)
    assert event.details["text"] == alarm["text"]
    assert event.time == alarm["time"]
    assert alarm["text"].startswith("tokens is higher in the last ")
    assert "of which the first 200 are the reference" in alarm["text"]


def drifted(stream: str, *, began: float, at: float) -> Alarm:
    return Alarm(stream, at, began, 400.0, 80, 40, "higher")


def test_a_move_is_of_means_before_the_change_and_from_it_to_the_alarm() -> None:
    of = drifted("tokens", began=3.0, at=5.0)
    move = measure_move(of, [1, 2, 3, 4, 5, 6], [1.0, 3.0, 10.0, np.nan, 20.0, 1000.0])
    assert (move.what, move.before, move.after) == ("mean tokens", 2.0, 15.0)
    assert measure_move(drifted(LABEL_STREAM, began=3.0, at=5.0), [1.0], [0.5]).what == "label less score"
    names = measure_move(drifted("task", began=3.0, at=5.0), [1, 2, 2, 3, 5], ["a", "a", "b", "b", "b"])
    assert (names.what, names.before, names.after) == ("share of 'a'", pytest.approx(2 / 3), 0.0)


def test_complaints_ring_nothing_where_answers_are_drawn_for_labels(url: Path, tmp_path: Path) -> None:
    """Whoever complains knows that the answer is wrong, so that of complaints every score is too high."""
    with ScoreLog.open(url) as log:
        write(log, 2000, first=1000, seed=3)
        names = [row.request_id for row in draw_sheet(log, 400, seed=1).rows]
        rng = np.random.default_rng(0)
        score = {str(name): s for name, s in log.tables.read("SELECT request_id, score FROM scores")}
        log.add_labels([FeedbackLabel(name, float(rng.random() < score[name])) for name in names])
        others = [name for name in score if name not in names and rng.random() < 0.3 * (1 - score[name])]
        log.add_labels([FeedbackLabel(name, 0, who="user") for name in others])
    assert run("drift", "--log", url, "--state", tmp_path / "s").stdout == ""


def test_a_correction_is_no_second_label_of_the_stream_whenever_it_is_read(url: Path) -> None:
    watch = LogWatch()
    with ScoreLog.open(url) as log:
        assert watch.read(log) == []
        before, rows = watch.watch.evidence[LABELS], watch.watch.watched_values[LABELS].rows
        labels = log.current_labels()
        assert rows == len(labels)
        unsure = [FeedbackLabel("r0", None, "ada", BEGIN + 1), FeedbackLabel("r1", None, "ada", BEGIN + 61)]
        log.add_labels(unsure)
        corrected = [FeedbackLabel(one.request_id, 1 - (one.value or 0), "bob", BEGIN + 1e6) for one in labels]
        log.add_labels(corrected)
        assert watch.read(log) == []
        assert (watch.watch.evidence[LABELS], watch.watch.watched_values[LABELS].rows) == (before, rows)
        anew = LogWatch()  # of one that reads only now, the same
        assert anew.read(log) == []
        assert anew.watch.evidence[LABELS] == pytest.approx(before)
        write(log, 5, first=2000, labels=1.0)
        watch.read(log)
        assert watch.watch.watched_values[LABELS].rows == rows + 5


def test_labels_count_once_whenever_they_came_and_however_they_are_dated(url: Path) -> None:
    watch, state = LogWatch(), url.with_name("drift.json")
    with ScoreLog.open(url) as log:
        watch.read(log)
        before = watch.watch.watched_values[LABELS].rows
        labelled = {one.request_id for one in log.current_labels()}
        later = [f"r{i}" for i in range(1000) if f"r{i}" not in labelled][:40]
        early = [FeedbackLabel(name, 1.0, "ada", BEGIN - 86_400.0) for name in later]
        log.add_labels([*early, FeedbackLabel("not yet", 1.0, "ada", BEGIN - 86_400.0)])
        for expected in (40, 40):
            watch.save(state)
            watch = LogWatch.load(state)
            watch.read(log)
            assert watch.watch.watched_values[LABELS].rows == before + expected
        write_one(log, "not yet", BEGIN + 1e5)
        log.delete_all([later[0]])
        log.label(later[1], 0, time=BEGIN - 2 * 86_400.0)  # a correction that is dated before what it corrects
        watch.read(log)
    assert watch.watch.watched_values[LABELS].rows == before + 41
    assert later[2] not in state.read_text(encoding="utf-8")


def test_lines_of_json_are_all_that_stands_on_stdout(url: Path, tmp_path: Path) -> None:
    done = run("estimate", "--json", "--log", url, "--model", "nobody")
    assert done.exit_code == 0
    assert "no answers of that time, model and checkpoint" in done.stderr
    assert all(json.loads(line) for line in done.stdout.splitlines())
    (tmp_path / "labels.csv").write_text("request_id,label\nr1,right\nr2,wrong\n")
    known = run("feedback", tmp_path / "labels.csv", "--log", url)
    assert (known.stdout, known.stderr) == (
        "stored 2 labels: 1 right, 1 wrong, 0 neither\n",
        "lines: 2 labels: 1 is right\n",
    )


def test_an_answer_that_is_stored_late_is_read_and_none_is_read_twice(url: Path) -> None:
    watch = LogWatch()
    with ScoreLog.open(url) as log:
        watch.read(log)
        assert watch.watch.watched_values[SCORES].rows == 1000
        write_one(log, "late", BEGIN + 5)  # by a server whose database could not be reached for hours
        watch.read(log)
        watch.read(log)
        assert watch.watch.watched_values[SCORES].rows == 1001
        log.delete_all(["late"])
        write_one(log, "new", BEGIN + 7)  # after the one with the highest number was taken away
        watch.read(log)
        watch.read(log)
        assert watch.watch.watched_values[SCORES].rows == 1002
        write_one(log, "ahead", BEGIN + 1e9)  # by a clock that is ahead
        watch.read(log)
        assert watch.watch.watched_values[SCORES].rows == 1003


def test_a_log_that_was_put_back_to_an_earlier_copy_is_refused(url: Path) -> None:
    copy = url.with_name("copy.sqlite")
    copy.write_bytes(url.read_bytes())
    watch = LogWatch()
    with ScoreLog.open(url) as log:
        write(log, 10, first=1000)
        watch.read(log)
    with ScoreLog.open(copy) as log:
        watch.log = log.identity()
        with pytest.raises(RecordError, match=r"up to number 1010, .*up to 1000 only"):
            watch.read(log)


def test_who_reads_at_the_same_time_is_refused_and_nothing_rings_twice(url: Path) -> None:
    state = url.with_name("drift.json")
    with kept_watch(state):
        refused = run("drift", "--log", url, "--state", state)
        assert refused.exit_code == 1
        assert "drift.json is being written to by process" in refused.output
        assert run("drift", "--log", url, "--state", url.with_name("other.json")).exit_code == 0
    assert run("drift", "--log", url, "--state", state).exit_code == 0
    assert sorted(path.name for path in url.parent.glob("*drift*")) == ["drift.json"]


def test_another_checkpoint_is_no_drift_and_the_same_one_that_says_otherwise_is(url: Path) -> None:
    with ScoreLog.open(url) as log:
        write(log, 800, first=1000, checkpoint="d" * 64, power=4.0)
        assert LogWatch().read(log) == []
        write(log, 800, first=1800, checkpoint="d" * 64, power=1.0)
        alarm = LogWatch().read(log)[0]
        assert (alarm["stream"], alarm["checkpoint"], alarm["direction"]) == ("score", "d" * 64, "fewer wrong answers")
        assert "score of checkpoint dddddddddddd is higher" in str(alarm["text"])


def test_versions_are_watched_each_by_itself_and_one_can_be_chosen(url: Path, tmp_path: Path) -> None:
    with ScoreLog.open(url) as log:
        write(log, 500, first=1000, checkpoint="d" * 64, labels=1.0, off=0.46)
        write(log, 500, first=2000, checkpoint="e" * 64, labels=1.0, off=-0.25)
        log.event(
            "promoted", {"from": "e" * 64, "from_path": "out/old", "to": "d" * 64, "to_path": "out/new"}, time=1.0
        )
        found = [alarm for alarm in LogWatch().read(log) if alarm["stream"] == LABEL_STREAM]
    assert [(alarm["checkpoint"][0], alarm["path"], alarm["direction"]) for alarm in found] == [
        ("d", "out/new", "more wrong answers"),
        ("e", "out/old", "fewer wrong answers"),
    ]
    assert float(found[0]["after"]) < -0.3
    assert float(found[1]["after"]) > 0.15
    assert "checkpoint dddddddddddd (out/new) are too high" in found[0]["text"]
    for given in ("eeeeee", "out/old", "e" * 64):
        state = tmp_path / f"state-{len(given)}"
        alarms = lines(run("drift", "--json", "--log", url, "--state", state, "--checkpoint", given), ALARM)
        assert {alarm["checkpoint"] for alarm in alarms if alarm["stream"] in (LABEL_STREAM, "score")} == {"e" * 64}
    refused = run("drift", "--log", url, "--state", tmp_path / "s", "--checkpoint", "ffff")
    assert refused.exit_code == 1
    assert (
        "is none of the checkpoints that gave this log's scores (cccccccccccc, dddddddddddd (out/new)" in refused.output
    )


def test_what_is_watched_is_kept_with_the_state(url: Path, tmp_path: Path) -> None:
    state = tmp_path / "drift.json"
    assert run("drift", "--log", url, "--state", state, "--within", "hour", "--batch", 2).exit_code == 0
    kept = LogWatch.load(state)
    assert (kept.within, kept.watch.batch, kept.model) == ("hour", 2, None)
    assert kept.read_to == 1000
    hours = set(kept.watch.watched_values[SCORES].ranks)
    assert hours == {str(hour) for hour in range(17)}, "1,000 minutes from midnight on"
    with kept_watch(state, within="hour") as again:
        assert again.read_to == kept.read_to
    refused = run("drift", "--log", url, "--state", state, "--model", "big")
    assert refused.exit_code == 1
    assert "has watched with model None, and 'big' was given" in refused.output
    state.write_text("[]")
    assert "is no state of `metaprobe drift`" in run("drift", "--log", url, "--state", state).output
    assert "in a folder that exists" in run("drift", "--log", url, "--state", tmp_path / "no" / "f").output
    assert run("drift", "--log", tmp_path / "none.sqlite", "--state", tmp_path / "new").exit_code == 2
    assert not (tmp_path / "none.sqlite").exists()


def test_a_state_is_of_one_log_and_another_begun_in_its_place_is_refused(url: Path, tmp_path: Path) -> None:
    """Its first answers, numbered as those that were read, would be taken for read: no alarm, however they changed."""
    state = tmp_path / "state.json"
    assert run("drift", "--log", url, "--state", state).exit_code == 0
    before = state.read_bytes()
    with ScoreLog.open(tmp_path / "other.sqlite") as log:
        write(log, 800, seed=1, longer=6, power=4)
    refused = run("drift", "--log", tmp_path / "other.sqlite", "--state", state)
    assert (refused.exit_code, "the state is of another log" in refused.output) == (1, True), refused.output
    assert state.read_bytes() == before
    moved = url.rename(tmp_path / "moved.sqlite")
    assert run("drift", "--log", moved, "--state", state).exit_code == 0, "the same log in another place"


class Hook:
    """A webhook of this machine that answers as it is told."""

    def __init__(self) -> None:
        self.status, self.posted = 200, list[dict[str, object]]()
        self.url = ""

    def reply(self, request: Asked) -> Reply:
        self.posted.append(request.json())
        return Reply(b"", self.status, {})


@pytest.fixture
def hook() -> Iterator[Hook]:
    hook = Hook()
    with serving(hook.reply) as address:
        hook.url = f"{address}/secret"
        yield hook


def test_a_webhook_gets_each_alarm_once_and_one_that_fails_gets_it_later(url: Path, hook: Hook, tmp_path: Path) -> None:
    words = ("drift", "--json", "--log", url, "--state", tmp_path / "s", "--webhook", hook.url)
    assert (run(*words).exit_code, hook.posted) == (0, [])
    with ScoreLog.open(url) as log:
        write(log, 300, first=1000, longer=2.0)
    hook.status = 500
    [alarm] = lines(failed := run(*words), ALARM)
    assert "1 alarms wait" in failed.stderr
    assert "status 500" in failed.stderr
    assert "secret" not in failed.output
    assert hook.posted == [alarm, alarm], "it is tried once more"
    assert run(*words).exit_code == 1, "no new alarm, and one that waits"
    hook.status = 204
    assert "1 alarms wait" in run(*words[:-2]).stderr
    hook.posted.clear()
    done = run(*words)
    assert (done.exit_code, hook.posted) == (0, [alarm])
    assert run(*words).exit_code == 0
    assert hook.posted == [alarm]


def test_a_webhook_that_never_answers_is_given_up(url: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metaprobe.production.monitoring.drift_of_log.TRY_TIMEOUT_S", 0.2)
    with ScoreLog.open(url) as log:
        write(log, 300, first=1000, longer=2.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        words = ("drift", "--json", "--log", url, "--state", tmp_path / "s", "--webhook")
        done = run(*words, f"http://127.0.0.1:{silent.getsockname()[1]}/")
    assert done.exit_code == ALARM
    assert "1 alarms wait" in done.stderr
    for given in ("ftp://a/b", "nowhere", "http:///x", "http://a b/"):
        refused = run(*words, given)
        assert (refused.exit_code, "expected a URL" in refused.output) == (1, True)
        assert given not in refused.output


def test_an_alarm_that_a_killed_process_has_stored_is_in_the_log_once(url: Path) -> None:
    with ScoreLog.open(url) as log:
        write(log, 300, first=1000, longer=2.0)
        assert LogWatch().read(log) == LogWatch().read(log)  # the second knows nothing of the first
        assert len(log.events(DRIFT_EVENT)) == 1
