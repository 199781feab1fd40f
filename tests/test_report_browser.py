"""The report in headless Chromium, as a reader with a mouse, a keyboard, a phone or a dark room has it."""

import shutil
from itertools import pairwise

import pytest
from made_up_report import made_up
from playwright.sync_api import sync_playwright

from metaprobe.eval.report.write import report_files

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
]

PATIENCE_MS = 180_000
"""On a busy machine the browser is slow; nothing here waits for something that may not come."""
FIRST_CELLS = "rows => rows.map(row => row.cells[0].textContent.trim())"
AUROCS = "rows => rows.map(row => Number(row.cells[2].dataset.value))"


@pytest.fixture(scope="module")
def comparison():
    return made_up(resamples=20)


@pytest.fixture(scope="module")
def file(comparison, tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    for name, content in report_files(comparison).items():
        (path.parent / name).parent.mkdir(exist_ok=True)
        (path.parent / name).write_bytes(content)
    return path


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, file):
    """Opens the report; whatever it says to the console or asks of a network fails the test."""
    contexts, complaints, requests = [], [], []

    def open_with(**options):
        context = browser.new_context(**options)
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(file.as_uri())
        return page

    yield open_with
    for context in contexts:
        context.close()
    assert not complaints
    fetched = [url for url in requests if not url.startswith("data:image/svg+xml;base64,")]
    assert fetched == [file.as_uri()] * len(contexts)


def rows(page, script, table="methods"):
    return page.eval_on_selector_all(f"#table-{table} tbody tr", script)


def test_a_click_on_a_head_sorts_and_a_second_one_turns_the_order_round(open_page):
    page = open_page()
    before = rows(page, FIRST_CELLS)
    head = page.locator("#table-methods thead th").nth(2)
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    values = rows(page, AUROCS)
    assert values == sorted(values, reverse=True)
    head.get_by_role("button").click()
    assert head.get_attribute("aria-sort") == "ascending"
    assert rows(page, AUROCS) == sorted(values)
    assert sorted(rows(page, FIRST_CELLS)) == sorted(before) != rows(page, FIRST_CELLS)
    assert page.locator("#table-methods th[aria-sort]").count() == 1


def test_the_keyboard_reaches_the_results_and_sorts(open_page):
    page = open_page()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0  # seen once it has the focus
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.locator("#methods").evaluate("section => { section.tabIndex = -1; section.focus(); }")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "scroll"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent.trim()") == "Method"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Space")
    assert rows(page, FIRST_CELLS) == sorted(rows(page, FIRST_CELLS), key=str.lower)
    page.keyboard.press("Enter")
    assert rows(page, FIRST_CELLS) == sorted(rows(page, FIRST_CELLS), key=str.lower, reverse=True)


def test_a_phone_scrolls_down_and_never_sideways(open_page):
    page = open_page(viewport={"width": 360, "height": 740})
    for details in page.locator("details").all():
        details.locator("summary").click()
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    outside = page.evaluate(
        """[...document.querySelectorAll("main *")].filter(part => !part.closest(".scroll") && !part.closest("svg")
           && part.getBoundingClientRect().right > 361).map(part => part.outerHTML.slice(0, 80))"""
    )
    assert outside == []


def test_the_dark_has_another_background_and_text_that_can_be_read_on_it(open_page):
    def luminance(page, of, what):
        colour = page.evaluate(f"getComputedStyle(document.querySelector('{of}')).{what}")
        parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    papers = []
    for scheme in ("light", "dark"):
        page = open_page(color_scheme=scheme)
        papers.append(luminance(page, "body", "backgroundColor"))
        for of, enough in (("body", 7), (".note", 4.5), ("nav a", 4.5), (".m-better", 4.5), (".m-worse", 4.5)):
            darker, lighter = sorted([papers[-1], luminance(page, of, "color")])
            assert (lighter + 0.05) / (darker + 0.05) >= enough, (scheme, of)  # WCAG 2.2, 1.4.3
    assert papers[0] > 0.9
    assert papers[1] < 0.1


def test_headings_are_in_order_and_everything_has_a_name(open_page):
    page = open_page()
    levels = page.eval_on_selector_all("h1, h2, h3, h4", "heads => heads.map(head => Number(head.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(below <= above + 1 for above, below in pairwise(levels))
    faults = page.evaluate(
        """[...document.querySelectorAll("th:not([scope]), figure:not(:has(figcaption)), table:not(:has(caption))"),
            ...[...document.querySelectorAll("a, button, summary")].filter(part => !part.textContent.trim()),
            ...[...document.images].filter(part => !part.alt),
            ...[...document.querySelectorAll("[aria-labelledby]")].filter(
              part => !document.getElementById(part.getAttribute("aria-labelledby"))),
           ].map(part => part.outerHTML.slice(0, 120))"""
    )
    assert faults == []
    assert page.evaluate("document.documentElement.lang") == "en"
    assert page.locator("main").count() == page.locator("nav").count() == 1


def test_a_script_that_came_with_the_data_cannot_run(browser, file):
    page = browser.new_page()
    page.goto(file.as_uri())
    refused = page.evaluate(
        """() => new Promise(resolve => {
             document.addEventListener("securitypolicyviolation", event => resolve(event.effectiveDirective));
             const script = document.createElement("script");
             script.textContent = "window.ran = true";
             document.body.append(script);
           })"""
    )
    assert refused == "script-src-elem"
    assert page.evaluate("window.ran") is None
    page.context.close()
