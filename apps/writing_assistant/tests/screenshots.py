"""Takes the pictures of apps/writing_assistant/figures: the page with a scripted teacher, wide, narrow and dark.

python apps/writing_assistant/tests/screenshots.py    # needs playwright, Pillow and Chromium
"""

import asyncio
import io
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright
from scripted_teacher import ScriptedTeacher

from metaprobe.papers.systems.caelf import SYSTEM as CAELF
from metaprobe.papers.systems.prompting import Prompts
from metaprobe.papers.systems.session import Models, Setup
from metaprobe_writing_assistant.page.app import Systems
from metaprobe_writing_assistant.page.run import listener_of, serve_page
from metaprobe_writing_assistant.page.settings import AssistSettings, ModelPlace
from metaprobe_writing_assistant.system.assistant import SYSTEM
from metaprobe_writing_assistant.system.wordnet import wordnet

FOLDER = Path(__file__).parent.parent / "figures"
MOST_BYTES = 150_000
TEXT = (
    "Veins look blue because the blood in them is blue. It turns red when it meets oxygen in the lungs.\n\n"
    "The colour shows through the skin, and everybody can see it on the back of a hand. My teacher always says that "
    "blood is blue in the body."
)
WIDE: dict[str, Any] = {"viewport": {"width": 1360, "height": 860}}
NARROW: dict[str, Any] = {"viewport": {"width": 390, "height": 800}, "is_mobile": True, "has_touch": True}


@click.command()
def main() -> None:
    """Take all pictures."""
    wordnet()  # takes seconds, which would be shown as the time of the first answer
    FOLDER.mkdir(parents=True, exist_ok=True)
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    expect.set_options(timeout=120_000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        with _served() as address:
            _drafting(browser, address)
            _words_in_the_dark(browser, address)
            _phone(browser, address)
            _arguing(browser, address)
        with _served(study=True) as address:
            _study(browser, address)
        browser.close()


def _words_in_the_dark(browser: Browser, address: str) -> None:
    page = _page(browser, address, {**WIDE, "color_scheme": "dark"})
    _ask(page, "I do not know how to start. Which words do I need about veins?")
    _keep(page, "words-dark")


def _drafting(browser: Browser, address: str) -> None:
    page = _page(browser, address, WIDE)
    page.locator(".draft").fill(TEXT)
    _ask(page, "Here is my first draft. Is it correct?")
    page.locator(".margin summary").first.click()
    page.locator(".score").last.scroll_into_view_if_needed()
    _keep(page, "wide")


def _phone(browser: Browser, address: str) -> None:
    page = _page(browser, address, NARROW)
    page.locator(".draft").fill(TEXT)
    page.get_by_role("button", name="Assistant", exact=True).tap()
    _ask(page, "Here is my first draft. Is it correct?")
    page.locator(".mine").scroll_into_view_if_needed()
    answer = _shot(page)
    page.get_by_role("button", name="Your text", exact=True).tap()
    page.locator(".margin summary").first.click()
    page.evaluate("window.scrollTo(0, 0)")
    pictures = [Image.open(io.BytesIO(taken)) for taken in (_shot(page), answer)]
    gap = 24
    both = Image.new("RGB", (sum(one.width for one in pictures) + gap, pictures[0].height), "white")
    both.paste(pictures[0], (0, 0))
    both.paste(pictures[1], (pictures[0].width + gap, 0))
    _save(both, "narrow")


def _arguing(browser: Browser, address: str) -> None:
    page = _page(browser, address, {"viewport": {"width": 1360, "height": 980}})
    page.get_by_role("button", name="Argue about a grade").click()
    page.locator("#essay").fill(TEXT)
    page.get_by_role("button", name="Grade", exact=True).click()
    expect(page.locator(".grade-line")).to_contain_text("level")
    page.locator("#objection").fill("My second sentence says what I mean by the word, by an example.")
    page.locator(".wanted").select_option("2")
    page.get_by_role("button", name="Object", exact=True).click()
    expect(page.locator(".attack.deciding").first).to_be_visible()
    _keep(page, "argue")


def _study(browser: Browser, address: str) -> None:
    page = _page(browser, address, WIDE)
    page.locator("#agree").check()
    page.get_by_role("button", name="Begin").click()
    for part in (1, 2, 3):
        expect(page.get_by_role("heading", name=f"Text {part} of 3")).to_be_visible()
        _ask(page, "How to start?")
        page.get_by_role("button", name="I am finished with this text").click()
    expect(page.locator("fieldset").first).to_be_visible()
    _keep(page, "survey")


def _page(browser: Browser, address: str, options: dict[str, Any]) -> Page:
    page = browser.new_context(**options).new_page()
    page.goto(address)
    return page


def _ask(page: Page, message: str) -> None:
    count = page.locator(".answer").count() + 1
    page.locator("#message").fill(message)
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".answer:not([aria-busy])")).to_have_count(count)


def _shot(page: Page) -> bytes:
    page.wait_for_timeout(300)
    return page.screenshot()


def _keep(page: Page, name: str) -> None:
    _save(Image.open(io.BytesIO(_shot(page))).convert("RGB"), name)


def _save(picture: Image.Image, name: str) -> None:
    """Saves as WebP, at the best quality that keeps the file small."""
    path = FOLDER / f"{name}.webp"
    for quality in (90, 80, 70, 60):
        picture.save(path, quality=quality, method=6)
        if path.stat().st_size <= MOST_BYTES:
            break
    click.echo(f"{path.name}: {path.stat().st_size // 1000} kB")


@contextmanager
def _served(*, study: bool = False) -> Iterator[str]:
    def setup(system: Any) -> Setup:
        return Setup(Models(ScriptedTeacher()), Prompts.load(system.folder or system.name, system.prompts))

    with tempfile.TemporaryDirectory() as folder:
        settings = AssistSettings(
            sessions=Path(folder) / "sessions.sqlite",
            models=(ModelPlace("every module", "scripted-teacher", ""),),
            port=0,
            study=study,
        )
        listener: socket.socket = listener_of(settings)
        systems = Systems(setup(SYSTEM), setup(CAELF))
        serve = threading.Thread(target=lambda: asyncio.run(serve_page(settings, systems, listener)), daemon=True)
        serve.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"


if __name__ == "__main__":
    main()
