"""Takes pictures of the pages that people open: report, dashboard, labelling page, each wide, narrow and dark.

    python scripts/screenshots.py [OUT]    # needs .[dev], Pillow and Chromium; a minute

The report compares recorded runs. The dashboard and the labelling page show a log of recorded answers, scored by the
bundled predictor after it was adapted to the other half of them. The writing assistant's pictures are taken by
apps/writing_assistant/tests/screenshots.py.
"""

import io
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import click
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from metaprobe import QualityPredictor, RunStore
from metaprobe.production.labelling.page import LabelServer
from metaprobe.production.monitoring.entry import Entry
from metaprobe.production.monitoring.label_draw import draw_sheet
from metaprobe.production.monitoring.log import LoggedAgreement, ScoreLog
from metaprobe.records.types import Run
from metaprobe.training.agreement import agreement_pairs

ROOT = Path(__file__).parent.parent
COMPARED = ROOT / "recorded" / "smollm2-metacog-eval"
LOGGED = ROOT / "recorded" / "metacog-every-agent"
SIZES = {
    "wide": {"viewport": {"width": 1360, "height": 900}},
    "narrow": {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True},
    "dark": {"viewport": {"width": 1360, "height": 900}, "color_scheme": "dark"},
}
"""Name of each view and the options of its browser context."""
LOGGED_DAYS = 20
MAX_PAGE_HEIGHT = 2600
"""Pixels of a page that a picture shows."""


@click.command()
@click.argument("out", type=click.Path(file_okay=False, path_type=Path), default=ROOT / "out" / "screenshots")
def main(out: Path) -> None:
    """Take the pictures, as OUT/PAGE-VIEW.webp."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        raise click.ClickException("no Chromium was found: install chromium or google-chrome")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        take_report(browser, Path(work), out)
        log = fill_log(Path(work))
        take_dashboard(browser, log, out)
        take_labelling(browser, log, out)
        browser.close()


def take_report(browser: Browser, work: Path, out: Path) -> None:
    """Compares recorded runs by the command, and takes the report."""
    compared = COMPARED.relative_to(ROOT)  # the report prints the command
    subprocess.run(
        [metaprobe_command(), "compare", str(compared), "--out", str(work / "report")],
        check=True,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    for view, page in opened(browser, (work / "report" / "report.html").as_uri()):
        keep(page, out / f"report-{view}.webp")


def take_dashboard(browser: Browser, log: Path, out: Path) -> None:
    """Serves the log, and takes its dashboard with one flagged answer unfolded."""
    with served(log) as address:
        for view, page in opened(browser, f"{address}/dashboard"):
            page.wait_for_selector("main[aria-busy=false]")
            page.locator("#queue summary").first.click()
            keep(page, out / f"dashboard-{view}.webp")


def take_labelling(browser: Browser, log: Path, out: Path) -> None:
    """Takes the labelling page of answers drawn from the log."""
    with ScoreLog.open(log) as opened_log:
        server = LabelServer(opened_log, list(draw_sheet(opened_log, 20, seed=0).rows), who="ada")
        try:
            for view, page in opened(browser, server.url):
                page.locator("#place", has_text="1 of 20").wait_for()
                keep(page, out / f"labelling-{view}.webp")
        finally:
            server.close()


def fill_log(work: Path) -> Path:
    """Returns a score log of the recorded answers that the predictor was not adapted to, a tenth of them labelled.

    A tenth has a second answer: what another agent of the recording said to the question.
    """
    runs = sorted(RunStore(LOGGED).runs(hidden=False), key=lambda run: run.item.id)
    predictor = adapted(runs[::2], work)
    path, now = work / "scores.sqlite", time.time()
    answers = [
        (run, call) for run in runs[1::2] for call in run.calls if call.stage == "answer" and call.logprobs is not None
    ]
    with ScoreLog.open(path) as log:
        for number, (run, call) in enumerate(answers):
            verdict = predictor.predict(call)
            log.write(
                Entry(
                    request_id=call.id,
                    time=now - LOGGED_DAYS * 86_400 * (1 - number / len(answers)) - 60,
                    model=call.model,
                    checkpoint=verdict.checkpoint,
                    score=verdict.score,
                    flagged=bool(verdict.flagged),
                    finish_reason="stop",
                    tokens=int(call.logprobs.size) if call.logprobs is not None else None,
                    question=run.item.question,
                    answer=call.text,
                )
            )
        log.flush()
        alike = [
            replace(run, calls=tuple(replace(call, agent="", model="", messages=()) for call in run.calls))
            for run in runs[1::2]
        ]
        pairs = agreement_pairs(alike, stage="answer")
        same = dict(zip(pairs.call_ids, pairs.same.tolist(), strict=True))
        for number, (_, call) in enumerate(answers[::10]):
            if call.id in same:
                when = now - LOGGED_DAYS * 86_400 * (1 - 10 * number / len(answers)) - 50
                log.add_agreement(LoggedAgreement(call.id, bool(same[call.id]), when))
        right = {call.id: run.label("correct", call.id) for run, call in answers}
        for row in draw_sheet(log, len(answers) // 10, seed=1).rows:
            if (label := right[row.request_id]) is not None:
                log.label(row.request_id, label, who="ada")
    return path


def adapted(runs: list[Run], work: Path) -> QualityPredictor:
    """Returns the bundled predictor adapted to the labelled answers of these runs."""
    answers = [(call, run.label("correct", call.id)) for run in runs for call in run.calls if call.stage == "answer"]
    labelled = [(call, int(label)) for call, label in answers if label is not None]
    return QualityPredictor.load().adapt(
        [call for call, _ in labelled], [label for _, label in labelled], out=work / "adapted"
    )


@contextmanager
def served(log: Path) -> Iterator[str]:
    """Serves the log's dashboard, and yields the server's address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        metaprobe_command(),
        "serve",
        "bundled:quality",
        "--no-auth",
        "--log-texts",
        "--log",
        str(log),
        "--port",
        str(port),
    ]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with socket.socket() as trial:
                if trial.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def opened(browser: Browser, url: str) -> Iterator[tuple[str, Page]]:
    """Yields the name of each view, and the page in it."""
    for view, options in SIZES.items():
        context = browser.new_context(**options)
        page = context.new_page()
        page.set_default_timeout(120_000)
        page.goto(url)
        yield view, page
        context.close()


def keep(page: Page, path: Path) -> None:
    """Saves the page from its top, and fails where it is wider than its window."""
    page.wait_for_timeout(300)
    window = page.viewport_size or {"width": 0}
    if page.evaluate("document.documentElement.scrollWidth") > window["width"]:
        raise click.ClickException(f"{path.stem} is wider than {window['width']} pixels")
    picture = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
    picture.crop((0, 0, picture.width, min(picture.height, MAX_PAGE_HEIGHT))).save(path, quality=80, method=6)
    click.echo(f"{path.name}: {path.stat().st_size // 1000} kB")


def metaprobe_command() -> str:
    """Returns the path of the command beside this Python."""
    return str(Path(sys.executable).with_name("metaprobe"))


if __name__ == "__main__":
    main()
