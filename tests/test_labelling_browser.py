"""The labelling page in headless Chromium, by keyboard and by finger."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import sync_playwright

from metaprobe.production.labelling.page import LabelServer
from metaprobe.production.monitoring.entry import Entry
from metaprobe.production.monitoring.label_draw import SheetRow, draw_sheet
from metaprobe.production.monitoring.log import ScoreLog

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")]
PATIENCE_MS = 180_000


@pytest.fixture
def labelled(tmp_path: Path) -> Iterator[tuple[LabelServer, ScoreLog, list[SheetRow]]]:
    with ScoreLog.open(tmp_path / "scores.sqlite") as log:
        for number in range(6):
            given = {"question": f"<i>What is {number}?</i>", "answer": "A word. " * 200, "tags": {"task": "faq"}}
            log.write(Entry(request_id=f"r{number}", time=1.7e9, model="m", checkpoint="c", score=0.5, **given))  # type: ignore[arg-type]
        assert log.flush()
        rows = list(draw_sheet(log, 5, seed=0).rows)
        server = LabelServer(log, rows, who="ada")
        yield server, log, rows
        server.close()


@pytest.fixture
def open_page() -> Iterator[Any]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        complaints: list[str] = []

        def opened(url: str, **options: Any) -> Any:
            page = browser.new_context(**options).new_page()
            page.set_default_timeout(PATIENCE_MS)
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.goto(url)
            return page

        yield opened
        browser.close()
        assert complaints == []


def at(page: Any, place: int) -> None:
    page.locator("#place", has_text=f"{place} of 5").wait_for()


def test_a_sheet_is_labelled_by_keys_alone(
    labelled: tuple[LabelServer, ScoreLog, list[SheetRow]], open_page: Any
) -> None:
    server, log, rows = labelled
    page = open_page(server.url)
    at(page, 1)
    assert page.inner_text("#question") == rows[0].question  # as text, whatever is in it
    for place, key in enumerate(("r", "w", "u", "s"), 2):
        page.keyboard.press(key)
        at(page, place)
    page.keyboard.press("b")
    at(page, 4)
    page.keyboard.press("ArrowLeft")  # wrong, after all, instead of skipped
    at(page, 5)
    page.keyboard.press("r")
    page.wait_for_selector("#end:not([hidden])")
    assert "5 answers: 2 right, 2 wrong, 1 unsure, 0 skipped" in page.inner_text("#sum")
    found = {one.request_id: (one.value, one.who) for one in log.current_labels()}
    assert found == {
        row.request_id: (value, "ada") for row, value in zip(rows, (1.0, 0.0, None, 0.0, 1.0), strict=True)
    }
    page.click("#done")
    assert server.done.wait(60)


def test_it_fits_a_phone_in_the_dark_and_says_when_a_label_was_not_stored(
    labelled: tuple[LabelServer, ScoreLog, list[SheetRow]], open_page: Any
) -> None:
    server, log, _ = labelled
    phone = {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark", "has_touch": True}
    page = open_page(server.url, **phone)
    at(page, 1)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 27)"
    page.tap("[data-label='1']")
    at(page, 2)
    assert len(log.current_labels()) == 1
    server._request_ids.clear()
    page.tap("[data-label='0']")
    page.wait_for_selector("#alert:not([hidden])")
    assert "Not stored: that answer is not on this sheet" in page.inner_text("#alert")
    at(page, 2)
