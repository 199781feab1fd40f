"""The dashboard: what it says is what the log holds, for those who have a key, at any size."""

import math
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import serving_clients
from served import KEY, running
from serving_clients import Served

from metaprobe.monitoring.entry import Entry
from metaprobe.monitoring.estimates import estimate_accuracy
from metaprobe.monitoring.log import ScoreLog
from metaprobe.monitoring.overview import Span, flagged_queue, overview
from metaprobe.monitoring.sampling import draw_sheet
from metaprobe.serving.http.app import create_app
from metaprobe.serving.http.settings import Settings

callers_keys = serving_clients.callers_keys
checkpoint = serving_clients.checkpoint

DAY = 86400.0
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def fill(log: ScoreLog, answers: int = 400, days: float = 20.0) -> float:
    """Answers of two models over so many days, a tenth of them labelled by a draw; the time after the last of them."""
    now, generator = time.time(), np.random.default_rng(2)
    for number, score in enumerate(generator.beta(5, 2, answers).tolist()):
        log.write(
            Entry(
                request_id=f"r{number}",
                time=now - days * DAY * (1 - number / answers) - 10,
                model="old" if number < answers / 2 else "new",
                checkpoint="a" * 64 if number < answers / 2 else "b" * 64,
                score=score,
                flagged=score < 0.5,
                finish_reason="stop",
                action="stop" if number % 50 == 0 else "",
                tokens=10,
                tokens_saved=5 if number % 50 == 0 else None,
                cost_usd=0.001,
                tags={"task": "faq" if number % 2 else "code"},
                question=f"<b>Question</b> {number}",
                answer=f"<script>alert({number})</script>",
            )
        )
    log.write(
        Entry(request_id="none", time=now - 20, model="new", checkpoint="b" * 64, score=None, tags={"task": "code"})
    )
    log.write(Entry(request_id="shadow", time=now - 20, model="x", checkpoint="d" * 64, score=0.0, shadow_of="r1"))
    assert log.flush()
    for row in draw_sheet(log, answers // 10, seed=1).rows:
        log.label(row.request_id, float(generator.random() < 0.7), who="ada")
    log.event(
        "drift", {"text": "the score fell", "picture": "<svg xmlns='http://www.w3.org/2000/svg'/>"}, time=now - DAY
    )
    return now


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("log") / "scores.sqlite"
    with ScoreLog.open(path) as log:
        fill(log)
    return path


@pytest.fixture(scope="module")
def log(path: Path) -> Iterator[ScoreLog]:
    with ScoreLog.open(path) as log:
        yield log


def span(days: float = 30, **chosen: str) -> Span:
    now = time.time()
    return Span(now - days * DAY, now, **chosen)


@pytest.mark.parametrize("chosen", [{}, {"model": "new"}, {"task": "faq"}, {"model": "old", "task": "code"}])
def test_sums_and_estimates_are_those_of_the_rows(log: ScoreLog, chosen: dict[str, str]) -> None:
    found = overview(log, span(**chosen))
    tags = {"task": chosen["task"]} if "task" in chosen else None
    rows = log.columns(model=chosen.get("model"), tags=tags)
    totals = found["totals"]
    assert totals["answers"] == len(rows)
    assert totals["flagged"] == np.nansum(rows.flagged)
    assert totals["tokens"] == np.nansum(rows.tokens)
    assert math.isclose(totals["cost_usd"], np.nansum(rows.cost_usd))
    assert totals["labels"] == np.isfinite(rows.label).sum()
    scored = np.isfinite(rows.score)
    three = estimate_accuracy(rows.score[scored], rows.label[scored], rows.propensity[scored])
    for exact in three:
        shown = found["accuracy"][exact.method]
        assert shown["labels"] == exact.labels
        for end in ("value", "low", "high"):  # scores are known by the hundredth, and labelled ones stand in it twice
            assert math.isclose(shown[end], getattr(exact, end), abs_tol=0.02)
    assert sum(one["answers"] for one in found["histogram"]) == scored.sum()
    assert sum(one["answers"] for one in found["over_time"]) == len(rows)
    assert found["coverage"]["promised"][-1][0] == 1
    assert math.isclose(found["coverage"]["promised"][-1][1], 1 - np.nanmean(rows.score), abs_tol=1e-9)


def test_risk_is_of_the_answers_that_were_not_flagged(log: ScoreLog) -> None:
    rows = log.columns()
    accepted = rows.score >= 0.5
    risk = overview(log, span())["risk"]["scores"]["value"]
    assert math.isclose(risk, 1 - rows.score[accepted].mean(), abs_tol=0.01)


@pytest.mark.parametrize(("days", "step"), [(1, 3600), (3, 3600), (7, 86400), (90, 86400), (365, 7 * 86400)])
def test_points_over_time_are_hours_days_or_weeks_and_lose_no_answer(log: ScoreLog, days: float, step: int) -> None:
    chosen = span(days)
    found = overview(log, chosen)
    assert found["span"]["step"] == step
    assert all(one["time"] % step == 0 for one in found["over_time"])
    inside = log.columns(since=chosen.start).time
    assert sum(one["answers"] for one in found["over_time"]) == found["totals"]["answers"] == len(inside)
    assert sum(one["labels"] for one in found["labels_over_time"]) == found["totals"]["labels"]
    assert len(found["labels_over_time"]) <= 9


def test_an_empty_log_and_one_without_labels_are_shown_too(tmp_path: Path) -> None:
    with ScoreLog.open(tmp_path / "scores.sqlite") as log:
        empty = overview(log, span())
        assert empty["totals"]["answers"] == 0
        assert empty["accuracy"]["scores"]["value"] is None
        log.write(Entry(request_id="a", time=time.time(), model="", checkpoint="", score=0.25))
        log.flush()
        one = overview(log, span(1))
        assert (one["accuracy"]["scores"]["value"], one["reliability"]) == (0.25, [])
        assert one["accuracy"]["powered"]["reason"] == "there are no labels"


def test_the_queue_is_the_flagged_ones_that_nobody_labelled_the_worst_first(log: ScoreLog) -> None:
    queue = flagged_queue(log, span(task="faq"), most=20)
    scores = [one["score"] for one in queue]
    assert scores == sorted(scores)
    assert scores[-1] < 0.5
    assert {one["task"] for one in queue} == {"faq"}
    labelled = {one.request_id for one in log.current_labels()}
    assert not labelled & {one["request_id"] for one in flagged_queue(log, span())}


def test_versions_and_events_are_named(log: ScoreLog) -> None:
    found = overview(log, span())
    assert [(one["checkpoint"][0], one["model"], one["answers"]) for one in found["versions"]] == [
        ("b", "new", 201),
        ("a", "old", 200),
    ]
    assert [one["kind"] for one in found["events"]] == ["drift"]
    assert found["choices"]["task"] == ["", "code", "faq"]


# Over HTTP


@pytest.fixture(scope="module")
def served(checkpoint: Path, path: Path) -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("METAPROBE_API_KEY", KEY)
        with running(create_app(Settings(checkpoint=checkpoint, log=str(path))), lifespan="on") as (url, _):
            yield Served(url)


def test_the_page_is_for_everyone_and_what_it_shows_for_who_has_a_key(served: Served) -> None:
    page = served.get("/dashboard")
    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "http" not in page.text.replace("http://www.w3.org/2000/svg", "")  # it fetches nothing from elsewhere
    for address in ("/dashboard/data", "/dashboard/queue"):
        assert served.get(address).status_code == 401
        assert served.get(address, authorization=f"Bearer {KEY}").status_code == 200


def test_what_is_asked_for_is_what_comes(served: Served) -> None:
    held = served.get("/dashboard/data?days=30&model=new&task=code", authorization=f"Bearer {KEY}").json()
    assert held["totals"]["answers"] == 101
    answers = served.get("/dashboard/queue?days=365", authorization=f"Bearer {KEY}").json()["answers"]
    assert answers[0]["answer"].startswith("<script>")


@pytest.mark.parametrize("days", ["x", "0", "-1", "nan", "1e9"])
def test_days_that_are_none_are_refused(served: Served, days: str) -> None:
    answer = served.get(f"/dashboard/data?days={days}", authorization=f"Bearer {KEY}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_days")


def test_without_a_log_there_is_no_dashboard_and_the_answer_says_why(checkpoint: Path) -> None:
    with running(create_app(Settings(checkpoint=checkpoint))) as (url, _):
        answer = Served(url).get("/dashboard")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_log")


# In a browser


@pytest.fixture
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_the_page_asks_for_the_key_and_shows_the_log_without_a_complaint(
    served: Served, browser: Any, width: int, scheme: str
) -> None:
    page = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page()
    page.set_default_timeout(180_000)
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(dialog.message))
    page.goto(f"{served.url}/dashboard")
    page.fill("#key", KEY)
    page.keyboard.press("Enter")
    page.wait_for_selector("main[aria-busy=false]")
    assert "401" in page.inner_text("#tiles")  # answers
    assert "about 40 tokens saved, estimated for 8 of them" in page.inner_text("#tiles")
    assert "$ 0.40 for the 400 answers whose cost is known" in page.inner_text("#tiles")
    assert page.locator("svg[role=img]").count() == 4
    assert page.locator("#queue details").count() > 5
    page.locator("#queue summary").first.focus()
    page.keyboard.press("Enter")
    assert "<b>Question</b>" in page.locator("#queue details[open] pre").first.inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.select_option("#model", "new")
    page.locator("#tiles", has_text="201").wait_for()
    assert complaints == []
