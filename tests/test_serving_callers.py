"""Callers are kept apart: each finds and labels what it asked for, and nothing of another's."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import logged_entries
import pytest
import serving_clients
from logged_entries import keep
from served import Upstream, running
from serving_clients import LOGPROBS, Served

from metaprobe.production.http.app import create_app
from metaprobe.production.http.request_log import NOT_LOGGED_REASON
from metaprobe.production.http.settings import Settings, SettingsError
from metaprobe.production.monitoring.entry import Entry
from metaprobe.production.monitoring.labeller import Labeller, NotYours
from metaprobe.production.monitoring.log import FeedbackLabel, ScoreLog
from metaprobe.production.monitoring.tables import LogError

server, where = logged_entries.server, logged_entries.where
checkpoint = serving_clients.checkpoint
upstream = serving_clients.upstream

A, B, OPERATOR, BOSS = ("key-of-team-a-0123", "key-of-team-b-0123", "key-without-a-name-0", "key-of-the-boss-012")


class Callers:
    """A server with four keys, and its log."""

    def __init__(self, url: str, log: ScoreLog) -> None:
        self._client = Served(url)
        self.log = log

    def post(self, key: str, path: str, body: object, **headers: str) -> Any:
        return self._client.post(path, body, authorization=f"Bearer {key}", **headers)

    def get(self, key: str, path: str) -> Any:
        return self._client.get(path, authorization=f"Bearer {key}")

    def ask(self, key: str, called: str = "") -> str:
        """The id of an answer."""
        named = {"x_request_id": called} if called else {}
        return str(self.post(key, "/v1/score", LOGPROBS, **named).json()["request_id"])

    def label(self, key: str, request_id: str, label: object = 1) -> Any:
        return self.post(key, "/v1/feedback", {"request_id": request_id, "label": label})

    def labels(self) -> dict[str, float | None]:
        return {one.request_id: one.value for one in self.log.current_labels()}


@pytest.fixture
def callers(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callers]:
    monkeypatch.setenv("METAPROBE_API_KEY", f"team-a={A}, team-b={B}, {OPERATOR}")
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[boss]\nkey = "{BOSS}"\nadmin = true\n')
    path = tmp_path / "scores.sqlite"
    app = create_app(Settings(checkpoint=checkpoint, log=str(path), keys_file=keys))
    with running(app) as (url, _), ScoreLog.open(path, entries=False) as log:
        yield Callers(url, log)


def test_two_callers_find_and_label_each_its_own_answers_and_nothing_of_the_others(callers: Callers) -> None:
    first, second = callers.ask(A, "job-1"), callers.ask(B, "job-1")
    assert first != second
    assert callers.label(A, "job-1", 1).json() == callers.label(B, "job-1", 0).json() == {"stored": 1, "unknown": 0}
    assert callers.labels() == {first: 1, second: 0}
    assert [callers.log.entry(one).key_name for one in (first, second)] == ["team-a", "team-b"]
    kept = callers.log.tables.read("SELECT request_id, key_name FROM labels")
    assert {tuple(row) for row in kept} == {(first, "team-a"), (second, "team-b")}
    theirs = callers.ask(A)
    mine = callers.ask(B, theirs)  # under a name that is another's id
    assert callers.label(B, theirs).json()["error"]["code"] == "not_yours"
    several = {"feedback": [{"request_id": mine, "label": 1}, {"request_id": theirs, "label": 0}]}
    answer = callers.post(B, "/v1/feedback", several)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_yours")
    assert callers.labels() == {first: 1, second: 0}
    assert callers.label(B, mine).json()["stored"] == 1
    assert callers.labels() == {first: 1, second: 0, mine: 1}
    assert callers.log.entry(theirs).key_name == "team-a"


def test_an_admin_labels_and_sees_what_anybody_asked_and_others_do_not(callers: Callers) -> None:
    ours, named = callers.ask(A), callers.ask(B, "job-2")
    for key in (OPERATOR, BOSS):
        assert callers.label(key, ours).json() == callers.label(key, "job-2", 0).json() == {"stored": 1, "unknown": 0}
        assert callers.labels() == {ours: 1, named: 0}
    for path in ("/metrics", "/dashboard/data", "/dashboard/queue"):
        assert [callers.get(key, path).status_code for key in (OPERATOR, BOSS)] == [200, 200]
        answer = callers.get(A, path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "admins_only")


def test_a_file_of_keys_says_who_is_an_admin(tmp_path: Path, checkpoint: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[boss]\nkey = "{BOSS}"\nadmin = "yes"\n')
    with pytest.raises(SettingsError, match=r"is no caller .*admin"):
        create_app(Settings(checkpoint=checkpoint, keys_file=keys))


# The same, of the log


def entry(request_id: str, callers_id: str = "", key_name: str = "", **more: Any) -> Entry:
    given = {"time": 1e9, "model": "m", "checkpoint": "c", "score": 0.5, **more}
    return Entry(request_id=request_id, callers_id=callers_id, key_name=key_name, **given)


def test_a_label_may_come_before_its_answer_under_the_callers_name(where: str) -> None:
    with ScoreLog.open(where) as log:
        for key, value in (("a", 1), ("b", 0), ("c", 1)):
            assert log.add_labels([FeedbackLabel("job", value)], labeller=Labeller(key, admin=False)) == 0
        keep(log, entry("r1", "job", "a"), entry("r2", "job", "b"))
        assert {one.request_id: one.value for one in log.current_labels()} == {"r1": 1, "r2": 0, "job": 1}
        assert log.columns(labelled=True).label.tolist() == [1, 0]


def test_a_name_of_several_answers_is_refused_and_the_shadow_has_none(where: str) -> None:
    with ScoreLog.open(where) as log:
        for number in (1, 2):
            log.write(entry(f"r{number}", "job", "a"))
            log.write(entry(f"r{number}:shadow", "", "a", shadow_of=f"r{number}"))
        assert log.flush()
        with pytest.raises(LogError, match="2 answers were asked for under that name"):
            log.label("job", 1)
        with pytest.raises(NotYours):
            log.add_labels([FeedbackLabel("r1", 1)], labeller=Labeller("b", admin=False))
        assert log.add_labels([FeedbackLabel("job", 1)], labeller=Labeller("b", admin=False)) == 0
        log.label("r2", 1)
        assert log.entry("r2").callers_id == "job"


def test_a_verdict_that_the_log_did_not_take_says_so(
    checkpoint: Path, upstream: tuple[Upstream, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("METAPROBE_API_KEY", OPERATOR)
    opened = ScoreLog.open
    monkeypatch.setattr(ScoreLog, "open", lambda where, **more: opened(where, capacity=2, **more))
    monkeypatch.setattr("metaprobe.production.monitoring.log_writer.BATCH_WAIT_S", 60)
    path = tmp_path / "scores.sqlite"
    with running(create_app(Settings(checkpoint=checkpoint, upstream=upstream[1], log=str(path)))) as (url, _):
        client = Callers(url, ScoreLog.open(path, entries=False))
        with client.log.tables.transaction():  # the writer waits
            several = client.post(OPERATOR, "/v1/score", {"responses": [LOGPROBS] * 4}).json()["verdicts"]
            asked = {"model": "m", "messages": [{"role": "user", "content": "plain"}]}
            chat = client.post(OPERATOR, "/v1/chat/completions", asked).json()["metaprobe"]
            stream = client.post(OPERATOR, "/v1/chat/completions", {**asked, "stream": True}).text
            counts = client.get(OPERATOR, "/metrics").text
        client.log.close()
    assert [NOT_LOGGED_REASON in one["reason"] for one in several] == [False, False, True, True]
    assert NOT_LOGGED_REASON in chat["reason"]
    assert chat["score"] is not None
    assert NOT_LOGGED_REASON in stream
    assert "metaprobe_log_dropped_total 4.0" in counts
