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
from serving_clients import Served, serving

from metaprobe.eval.metrics.bootstrap import Interval
from metaprobe.production.http.app import create_app
from metaprobe.production.http.settings import Settings
from metaprobe.production.monitoring.entry import Entry
from metaprobe.production.monitoring.estimates import estimate_accuracy
from metaprobe.production.monitoring.label_draw import draw_sheet
from metaprobe.production.monitoring.log import FeedbackLabel, LoggedAgreement, ScoreLog
from metaprobe.production.monitoring.overview import Span, flagged_queue, overview

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
    log.event("drift", {"text": "the score fell"}, time=now - DAY)
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


NEW, OLD = "b" * 64, "a" * 64


@pytest.mark.parametrize(
    "chosen", [{}, {"model": "new"}, {"task": "faq"}, {"model": "old", "task": "code"}, {"checkpoint": OLD}]
)
def test_sums_are_of_all_rows_and_estimates_of_each_version_by_itself(log: ScoreLog, chosen: dict[str, str]) -> None:
    found = overview(log, span(**chosen))
    tags = {"task": chosen["task"]} if "task" in chosen else None
    rows = log.columns(model=chosen.get("model"), checkpoint=chosen.get("checkpoint"), tags=tags, gated=True)
    totals = found["totals"]
    assert totals["answers"] == len(rows)
    assert totals["flagged"] == np.nansum(rows.flagged)
    assert totals["tokens"] == np.nansum(rows.tokens)
    assert math.isclose(totals["cost_usd"], np.nansum(rows.cost_usd))
    assert totals["labels"] == np.isfinite(rows.label).sum()
    there = [one for one in (NEW, OLD) if one in rows.checkpoint]
    assert [one["checkpoint"] for one in found["versions"]] == there, "newest first"
    for version in found["versions"]:
        mine = rows.rows(rows.checkpoint == version["checkpoint"])
        scored = np.isfinite(mine.score) & (mine.action == "")
        known = scored | (np.isfinite(mine.label) & (mine.action == ""))  # a label counts without a score, too
        for exact in estimate_accuracy(mine.score[known], mine.label[known], mine.propensity[known]):
            shown = version["accuracy"][exact.method]
            assert shown["labels"] == exact.labels
            for end in ("value", "low", "high"):  # scores are known by the hundredth, and labelled ones stand in twice
                assert math.isclose(shown[end], getattr(exact, end), abs_tol=0.03)
        assert sum(one["answers"] for one in version["histogram"]) == scored.sum()
        assert sum(one["answers"] for one in version["over_time"]) == version["answers"] == len(mine)
        assert version["coverage"]["promised"][-1][0] == 1
        assert math.isclose(version["coverage"]["promised"][-1][1], 1 - mine.score[scored].mean(), abs_tol=1e-9)


def test_second_answers_are_counted_by_time_with_an_interval(tmp_path: Path) -> None:
    with ScoreLog.open(tmp_path / "scores.sqlite") as log:
        now = fill(log)
        empty = overview(log, span())["second_answers"]
        assert (empty["answers"], empty["same"], empty["windows"]) == (0, None, [])
        for number in range(0, 400, 4):  # the older model agrees with itself, the newer one half of the time
            when = now - 20 * DAY * (1 - number / 400)
            log.add_agreement(LoggedAgreement(f"r{number}", number < 200 or number % 8 == 0, when))
        log.add_agreement(LoggedAgreement("never-logged", True, now))
        every, newer = (overview(log, span(**chosen))["second_answers"] for chosen in ({}, {"model": "new"}))
        assert (every["answers"], every["same"], newer["answers"], newer["same"]) == (100, 0.75, 50, 0.5)
        half = Interval.of_share(0.5, 50)
        assert (newer["low"], newer["high"]) == pytest.approx((half.low, half.high))
        assert sum(one["answers"] for one in every["windows"]) == 100
        assert every["windows"][0]["same"] == 1 > every["windows"][-1]["same"]
        assert all(one["low"] <= one["same"] <= one["high"] for one in every["windows"])
        assert overview(log, span(task="code"))["second_answers"]["answers"] == 100  # every fourth is of this task


def test_no_figure_is_of_two_versions_whose_scores_are_off_in_opposite_ways(tmp_path: Path) -> None:
    now, rng = time.time(), np.random.default_rng(3)
    with ScoreLog.open(tmp_path / "scores.sqlite") as log:
        for number in range(600):
            version, score = (OLD, 0.33) if number % 2 else (NEW, 0.86)
            log.write(
                Entry(request_id=f"r{number}", time=now - 600 + number, model="m", checkpoint=version, score=score)
            )
        assert log.flush()
        right = [float(rng.random() < (0.7 if number % 2 else 0.4)) for number in range(600)]
        log.add_labels(FeedbackLabel(f"r{number}", value) for number, value in enumerate(right))
        log.event("promoted", {"from": OLD, "from_path": "out/old", "to": NEW, "to_path": "out/new"})
        found = overview(log, span(1))
    assert "accuracy" not in found
    right = {one["path"]: one["accuracy"]["labelled"]["value"] for one in found["versions"]}
    assert right == {"out/new": pytest.approx(0.4, abs=0.1), "out/old": pytest.approx(0.7, abs=0.1)}
    for version in found["versions"]:
        scores = {round(one["score"], 2) for one in version["reliability"]}
        assert scores == {0.86 if version["checkpoint"] == NEW else 0.33}
    assert {one["checkpoint"]: one["path"] for one in found["choices"]["checkpoint"]} == {
        NEW: "out/new",
        OLD: "out/old",
    }


@pytest.mark.parametrize(("days", "step"), [(1, 3600), (3, 3600), (7, 86400), (90, 86400), (365, 7 * 86400)])
def test_points_over_time_are_hours_days_or_weeks_and_lose_no_answer(log: ScoreLog, days: float, step: int) -> None:
    chosen = span(days)
    found = overview(log, chosen)
    assert found["span"]["step"] == step
    points = [one for version in found["versions"] for one in version["over_time"]]
    assert all(one["time"] % step == 0 for one in points)
    inside = log.columns(since=chosen.start, gated=True).time
    assert sum(one["answers"] for one in points) == found["totals"]["answers"] == len(inside)
    windows = [one for version in found["versions"] for one in version["labels_over_time"]]
    assert sum(one["labels"] for one in windows) == found["totals"]["labels"]
    assert all(len(version["labels_over_time"]) <= 9 for version in found["versions"])


def test_an_empty_log_and_one_without_labels_are_shown_too(tmp_path: Path) -> None:
    with ScoreLog.open(tmp_path / "scores.sqlite") as log:
        empty = overview(log, span())
        assert empty["totals"]["answers"] == 0
        assert empty["versions"] == []
        log.write(Entry(request_id="a", time=time.time(), model="", checkpoint="", score=0.25))
        log.flush()
        [one] = overview(log, span(1))["versions"]
        assert (one["accuracy"]["scores"]["value"], one["reliability"]) == (0.25, [])
        assert one["accuracy"]["powered"]["reason"] == "there are no labels"


def test_the_queue_is_the_flagged_ones_that_nobody_labelled_the_worst_first(log: ScoreLog) -> None:
    queue = flagged_queue(log, span(task="faq"), max_answers=20)
    scores = [one["score"] for one in queue]
    assert scores == sorted(scores)
    assert scores[-1] < 0.5
    assert {one["task"] for one in queue} == {"faq"}
    labelled = {one.request_id for one in log.current_labels()}
    assert not labelled & {one["request_id"] for one in flagged_queue(log, span())}


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
    held = served.get(f"/dashboard/data?days=30&checkpoint={OLD}", authorization=f"Bearer {KEY}").json()
    assert [one["checkpoint"] for one in held["versions"]] == [OLD]
    assert held["totals"]["answers"] == 200
    now = time.time()
    address = f"/dashboard/data?since={now - 40 * DAY}&until={now - 11 * DAY}"
    assert served.get(address, authorization=f"Bearer {KEY}").json()["totals"]["answers"] in range(160, 200)
    queue = served.get(f"/dashboard/queue?checkpoint={OLD}", authorization=f"Bearer {KEY}").json()["answers"]
    assert {one["model"] for one in queue} == {"old"}
    answers = served.get("/dashboard/queue?days=365", authorization=f"Bearer {KEY}").json()["answers"]
    assert answers[0]["answer"].startswith("<script>")


def test_days_and_times_that_are_none_are_refused(served: Served) -> None:
    days = [f"days={one}" for one in ("x", "0", "-1", "nan", "1e9")]
    times = ["since=x", "since=nan", "since=5&until=4", "since=1&until=1e9", "since=-1&until=5"]
    for code, queries in (("invalid_days", days), ("invalid_time", times)):
        for query in queries:
            answer = served.get(f"/dashboard/data?{query}", authorization=f"Bearer {KEY}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, code), query


def test_without_a_log_there_is_no_dashboard_and_the_answer_says_why(checkpoint: Path) -> None:
    with serving(checkpoint) as client:
        answer = client.get("/dashboard")
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
@pytest.mark.parametrize(
    ("each", "shown"), [(0.0000012, "$ 0.0000012"), (0.0042, "$ 0.0042"), (0.5, "$ 0.50"), (0.0, "$ 0.00")]
)
def test_costs_below_a_cent_are_shown(
    checkpoint: Path, tmp_path: Path, browser: Any, monkeypatch: pytest.MonkeyPatch, each: float, shown: str
) -> None:
    monkeypatch.setenv("METAPROBE_API_KEY", KEY)
    where = tmp_path / "scores.sqlite"
    with ScoreLog.open(where) as log:
        log.write(Entry(request_id="r", time=time.time(), model="m", checkpoint=NEW, score=0.5, cost_usd=each))
    with running(create_app(Settings(checkpoint=checkpoint, log=str(where))), lifespan="on") as (url, _):
        page = browser.new_page()
        page.add_init_script(f"sessionStorage.setItem('metaprobe-key', '{KEY}')")
        page.goto(f"{url}/dashboard")
        page.locator("#tiles", has_text=f"{shown} for the 1 answer whose cost is known").wait_for()


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
    page.wait_for_selector("#ask", state="visible")
    assert not page.is_visible("#alert"), "nothing was typed yet"
    assert not page.is_visible("#tiles")
    page.fill("#key", "another")
    page.keyboard.press("Enter")
    page.wait_for_selector("#alert", state="visible")
    assert "does not know that key" in page.inner_text("#alert")
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
    assert "The pictures below are of bbbbbbbbbbbb, the newest." in page.inner_text("main")
    page.select_option("#checkpoint", OLD)
    page.locator("#tiles", has_text="Right answers of aaaaaaaaaaaa").wait_for()
    assert "pictures below are of aaaaaaaaaaaa." in page.inner_text("main")
    page.select_option("#checkpoint", "")
    page.select_option("#model", "new")
    page.locator("#tiles", has_text="201").wait_for()
    page.select_option("#model", "")
    page.select_option("#days", "")
    page.fill("#since", time.strftime("%Y-%m-%d", time.gmtime(time.time() - 40 * DAY)))
    page.fill("#until", time.strftime("%Y-%m-%d", time.gmtime(time.time() - 25 * DAY)))
    page.locator("#versions", has_text="No answers in this time").wait_for()
    assert complaints == []
