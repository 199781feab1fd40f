"""`metaprobe log` removes from a score log: old answers, and one request."""

import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from logged_entries import keep

from metaprobe.cli import main
from metaprobe.production.monitoring.entry import Entry
from metaprobe.production.monitoring.log import ScoreLog

DAY = 86400.0


def run(*words: object) -> Result:
    return CliRunner().invoke(main, ["log", *map(str, words)])


def entry(request_id: str, days: float, **more: object) -> Entry:
    """An answer of so many days ago, with all that a log may keep."""
    given = {
        "request_id": request_id,
        "time": time.time() - days * DAY,
        "model": "m",
        "checkpoint": "c" * 64,
        "score": 0.5,
        "logprobs": [-0.5, -0.25],
        "question": f"question of {request_id}",
        "answer": f"answer of {request_id}",
    }
    return Entry(**given | more)  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Answers of 40, 10 and 2 days ago, labelled; a shadow's verdict on the oldest, and one with texts alone."""
    path = tmp_path / "scores.sqlite"
    with ScoreLog.open(path) as log:
        for request_id, days in (("old", 40), ("middle", 10), ("new", 2)):
            log.write(entry(request_id, days))
        keep(log, entry("old:shadow", 40, shadow_of="old"), entry("texts", 10, logprobs=None))
        for request_id in ("old", "middle", "new"):
            log.label(request_id, 1, who="ada")
        log.event("drift", {"stream": "score"}, time=time.time() - 50 * DAY)
    return path


def ids(path: Path) -> list[str]:
    with ScoreLog.open(path) as log:
        return [str(name) for name in log.columns(ids=True).request_id]


def test_prune_takes_away_what_is_older_with_its_labels_and_leaves_events(path: Path) -> None:
    done = run("prune", "--log", path, "--older-than", 30)
    assert (done.exit_code, done.stdout) == (0, "took away 2 answers older than 30 days\n")  # with the shadow's
    assert ids(path) == ["middle", "texts", "new"]
    with ScoreLog.open(path) as log:
        assert {one.request_id for one in log.current_labels()} == {"middle", "new"}
        assert len(log.columns(shadow=True)) == 0
        assert len(log.events()) == 1


def test_delete_takes_away_each_named_request_and_says_which_it_does_not_know(path: Path) -> None:
    done = run("delete", "old", "nobody", "new", "--log", path)
    assert done.exit_code == 1
    assert "took away 2 requests" in done.stdout
    assert "nothing is known of nobody; expected ids that came with verdicts" in done.stderr
    assert ids(path) == ["middle", "texts"]
    assert b"of old" not in path.read_bytes()
    assert run("delete", "middle", "--log", path).exit_code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("prune", "--older-than", "0"), "0.0 is not in the range x>0"),
        (("prune",), "Missing option '--older-than'"),
        (("delete",), "Missing argument 'REQUEST_ID...'"),
    ],
)
def test_what_is_not_said_in_full_takes_nothing_away(path: Path, words: tuple[str, ...], said: str) -> None:
    done = run(*words, "--log", path)
    assert done.exit_code == 2
    assert said in done.output
    assert len(ids(path)) == 4


def test_a_log_that_is_not_there_is_refused_and_not_made(tmp_path: Path) -> None:
    for words in (
        ("prune", "--older-than", 1),
        ("delete", "a"),
    ):
        done = run(*words, "--log", tmp_path / "none.sqlite")
        assert done.exit_code == 2
        assert "there is no score log" in done.output
    assert not (tmp_path / "none.sqlite").exists()
