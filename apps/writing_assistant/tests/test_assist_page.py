"""The writing assistant's page in headless Chromium: written, asked, reloaded, unplugged, filled up and contested."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby

import pytest
from assisted import VEINS, page_of, plain_words
from playwright.sync_api import expect, sync_playwright
from scripted_teacher import SAID, ScriptedTeacher
from served import running

from metaprobe.papers.tasks.named_tasks import load_task
from metaprobe_writing_assistant.page.session_file import SessionFile
from metaprobe_writing_assistant.page.sessions import Sessions
from metaprobe_writing_assistant.page.study import StudyFile
from metaprobe_writing_assistant.page.tasks import TASKS
from metaprobe_writing_assistant.study.survey import QUESTIONS
from metaprobe_writing_assistant.system.contract import CONDITIONS

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine"),
]

PATIENCE_MS = 120_000
"""On a busy machine the browser is slow; nothing here waits for something that may not come."""
DRAFT_QUESTION = "Here is my first draft. Is it correct?"
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}


class World:
    """The page on a port, its file and its teacher."""

    def __init__(self, address: str, file: SessionFile, teacher: ScriptedTeacher) -> None:
        self.address = address
        self.file = file
        self.teacher = teacher


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        expect.set_options(timeout=PATIENCE_MS)
        yield browser
        browser.close()


@pytest.fixture
def world_of(tmp_path, monkeypatch):
    plain_words(monkeypatch)

    @contextmanager
    def served(**options) -> Iterator[World]:
        teacher = ScriptedTeacher()
        with SessionFile(tmp_path / "sessions.sqlite") as file:
            app = page_of(file, teacher, **options)
            with running(app, timeout_graceful_shutdown=2) as (address, _):
                yield World(address, file, teacher)

    return served


@pytest.fixture
def world(world_of):
    with world_of() as world:
        yield world


@pytest.fixture
def open_page(browser):
    """Opens a page; what it says to the console, or asks of another address, fails the test unless it was expected."""
    contexts, complaints, strangers = [], [], []

    def open_at(address, **options):
        context = browser.new_context(**options)
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: None if request.url.startswith(address) else strangers.append(request.url))
        page.goto(address)
        return page

    open_at.complaints = complaints
    yield open_at
    for context in contexts:
        context.close()
    assert complaints == []
    assert strangers == []


def write(page, text):
    page.locator(".draft").fill(text)
    expect(page.locator(".saved")).to_have_text("Saved")


def answers(page):
    return page.locator(".answer:not([aria-busy])")


def ask(page, message):
    """Sends a message and waits for the end of its answer, which it returns."""
    before = page.locator(".turn").count()
    page.get_by_label("Your message").fill(message)
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".turn")).to_have_count(before + 1)
    expect(answers(page)).to_have_count(before + 1)
    return answers(page).last


CASES = {group: list(items) for group, items in groupby(load_task("writing-cases"), key=lambda item: item.group)}


@pytest.mark.parametrize("case", CASES)
def test_a_writing_case_of_the_paper_is_played_from_its_first_input_to_its_last(world, open_page, case):
    page = open_page(world.address)
    page.get_by_text("About you").click()
    page.get_by_label("How well do you know English").fill(CASES[case][0].fields["proficiency"])
    page.get_by_role("button", name="Keep").click()
    expect(page.locator(".kept")).to_have_text("Kept")
    for item in CASES[case]:
        if item.fields["draft"]:
            write(page, item.fields["draft"])
        answer = ask(page, item.fields["message"])
        expect(answer.locator(".prose")).to_contain_text(re.compile("Which of (your sentences|them) would you"))
        expect(answer.locator(".about")).to_contain_text("modules, with monitor and control")
    expect(page.locator(".turn")).to_have_count(len(CASES[case]))
    expect(page.locator(".card").first).to_be_visible()
    expect(page.locator(".score").last).to_contain_text(re.compile("Score [34] of 5"))
    kept = Sessions(world.file)
    (session,) = [one["id"] for one in kept.titles()]
    turns = [turn for _, turn in kept.turns(session)]
    assert [turn.message for turn in turns] == [item.fields["message"] for item in CASES[case]]
    assert {turn.state for turn in turns} == {"done"}
    last = [item.fields["draft"] for item in CASES[case] if item.fields["draft"]]
    assert kept.get(session).draft == (last[-1] if last else "")
    prompts = "".join(message.content for request in world.teacher.asked for message in request.messages)
    assert CASES[case][0].fields["proficiency"] in prompts


def test_a_task_is_chosen_and_the_way_of_answering_switched(world, open_page):
    page = open_page(world.address)
    page.get_by_role("button", name="My texts").click()
    page.get_by_role("listitem").filter(has_text=TASKS[2].title).get_by_role("button", name="Begin").click()
    expect(page.locator(".task")).to_have_text(TASKS[2].text)
    first = ask(page, "I do not know how to start. Which words do I need about veins?")
    expect(first.locator(".card").first.get_by_role("heading")).to_contain_text("vein")
    expect(first.locator(".score")).to_have_count(0)
    write(page, f"{VEINS} Everybody knows it.")
    second = ask(page, DRAFT_QUESTION)
    expect(second.locator(".score")).to_contain_text("Score 3 of 5")
    remarks = page.locator(".margin .remark")
    expect(remarks).to_have_count(2)
    remarks.first.locator("summary").click()
    expect(remarks.first).to_contain_text("Nothing in the text supports it yet")
    remarks.first.get_by_role("button", name="Show the sentence").click()
    chosen = page.evaluate("() => [document.activeElement.selectionStart, document.activeElement.selectionEnd]")
    assert f"{VEINS} Everybody knows it."[slice(*chosen)] == "Veins look blue because the blood in them is blue."
    page.get_by_label("Answered by").select_option("single")
    third = ask(page, "Here is my final essay. Please evaluate it.")
    expect(third.locator(".about")).to_contain_text("one model alone")
    expect(third.locator(".score")).to_have_count(0)
    kept = Sessions(world.file)
    (session,) = [one["id"] for one in kept.titles() if one["title"].startswith("Veins")]
    assert [turn.condition for _, turn in kept.turns(session)] == ["metacrit", "metacrit", "single"]
    assert kept.turns(session)[1][1].draft == f"{VEINS} Everybody knows it."


def test_a_reload_in_the_middle_of_an_answer_loses_nothing(world, open_page):
    page = open_page(world.address)
    write(page, VEINS)
    world.teacher.hold = lambda request: request.stage == "respond"
    page.get_by_label("Your message").fill(DRAFT_QUESTION)
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".answer .prose")).to_contain_text("You have begun")
    page.reload()
    expect(page.locator(".answer .prose")).to_contain_text("You have begun")
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    expect(page.locator(".draft")).to_have_value(VEINS)
    world.teacher.hold = lambda request: False
    expect(page.locator(".about")).to_contain_text("12 calls")
    expect(page.locator(".turn")).to_have_count(1)
    assert sum(request.stage == "respond" for request in world.teacher.asked) == 1


def test_a_message_that_was_not_sent_and_a_letter_just_typed_survive_a_reload(world, open_page):
    page = open_page(world.address)
    write(page, "First. ")
    page.get_by_label("Your message").fill("Half a question")
    page.locator(".draft").press_sequentially("Last word")
    page.reload()  # before the pause after which it is saved
    expect(page.locator(".draft")).to_have_value(re.compile("Last word"))
    expect(page.get_by_label("Your message")).to_have_value("Half a question")


def test_two_sessions_at_once_get_each_its_own_answer(world, open_page):
    one, other = open_page(world.address), open_page(world.address)
    write(one, VEINS)
    write(other, "Summer is warmer because the earth is nearer the sun. That is easy.")
    for page in (one, other):
        page.get_by_label("Your message").fill(DRAFT_QUESTION)
    for page in (one, other):
        page.get_by_role("button", name="Send").click()
    expect(one.locator(".answer .prose")).to_contain_text("about veins")
    expect(other.locator(".answer .prose")).to_contain_text("about seasons")
    expect(other.locator(".margin .remark").first).to_contain_text("Summer is warmer")
    assert one.url != other.url


def test_two_windows_of_one_text_do_not_overwrite_each_other(world, open_page):
    one = open_page(world.address)
    write(one, "From the first window.")
    other = one.context.new_page()
    other.goto(one.url)
    expect(other.locator(".draft")).to_have_value("From the first window.")
    write(other, "From the second window.")
    one.locator(".draft").fill("Again from the first.")
    expect(one.locator(".saved")).to_contain_text("changed in another window")
    one.get_by_role("button", name="Keep this one").click()
    expect(one.locator(".saved")).to_have_text("Saved")
    expect(one.locator(".draft")).to_have_value("Again from the first.")
    kept = Sessions(world.file)
    (session,) = [title["id"] for title in kept.titles()]
    texts = [kept.version(session, version["number"]) for version in kept.versions(session)]
    assert "From the second window." in texts
    assert kept.get(session).draft == "Again from the first."
    assert all("409" in complaint for complaint in open_page.complaints)
    open_page.complaints.clear()


def test_where_the_model_is_gone_the_page_says_so_and_asks_again(world, open_page):
    page = open_page(world.address)
    write(page, VEINS)
    world.teacher.gone = True
    answer = ask(page, DRAFT_QUESTION)
    expect(answer).to_contain_text("connection refused. Start its server, and ask again")
    expect(page.locator(".draft")).to_have_value(VEINS)
    world.teacher.gone = False
    answer.get_by_role("button", name="Ask again").click()
    expect(answers(page)).to_have_count(2)
    expect(answers(page).last).to_contain_text("You have begun well")


def test_stop_ends_an_answer_and_keeps_what_had_come(world, open_page):
    page = open_page(world.address)
    write(page, VEINS)
    world.teacher.hold = lambda request: request.stage == "respond"
    page.get_by_label("Your message").fill(DRAFT_QUESTION)
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".answer .prose")).to_contain_text("You have begun")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".answer")).to_contain_text("You stopped this answer.")
    expect(page.locator(".answer .prose")).to_contain_text("You have begun")
    expect(page.get_by_role("button", name="Stop")).to_be_hidden()
    world.teacher.hold = lambda request: False
    expect(ask(page, "And now?")).to_contain_text("Which of your sentences")


def test_on_a_full_disk_the_text_stays_in_the_browser_until_there_is_room(world, open_page):
    page = open_page(world.address)
    write(page, VEINS)
    world.file.limit_pages(1)
    long = "There is much to say about veins. " * 3000
    page.locator(".draft").fill(long)
    expect(page.locator(".saved")).to_contain_text("Not saved. Your text is kept in this browser.")
    expect(page.locator(".saved")).to_contain_text("disk is full")
    page.get_by_label("Your message").fill(DRAFT_QUESTION)
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".ask .problem")).to_contain_text("disk is full")
    expect(page.get_by_label("Your message")).to_have_value(DRAFT_QUESTION)
    page.reload()
    expect(page.locator(".draft")).to_have_value(long)
    world.file.limit_pages(100_000)
    expect(page.locator(".saved")).to_have_text("Saved")
    page.reload()
    expect(page.locator(".draft")).to_have_value(long)
    assert all("507" in complaint for complaint in open_page.complaints)
    open_page.complaints.clear()


def test_an_earlier_version_is_taken_back_and_the_newer_one_kept(world, open_page):
    page = open_page(world.address)
    write(page, "One version.")
    ask(page, DRAFT_QUESTION)
    write(page, "Quite another version.")
    page.get_by_role("button", name="Versions").click()
    page.get_by_role("button", name="Take this one").last.click()
    expect(page.locator(".draft")).to_have_value("One version.")
    expect(page.locator(".saved")).to_have_text("Saved")
    page.get_by_role("button", name="Versions").click()
    expect(page.get_by_role("dialog")).to_contain_text("3 words, by hand")


def test_what_a_model_says_is_never_markup(world, open_page, monkeypatch):
    page = open_page(world.address)
    nasty = '<img src=x onerror="document.title=1"> **bold** <b>not bold</b>'
    monkeypatch.setitem(SAID, "respond", lambda _: nasty)
    write(page, nasty)
    answer = ask(page, nasty)
    expect(answer.locator(".prose")).to_contain_text("<b>not bold</b>")
    expect(answer.locator("strong").first).to_have_text("bold")
    assert page.locator("img").count() == page.locator(".prose b").count() == 0
    assert page.title() == "Writing assistant"


def test_everything_can_be_done_by_keyboard(world, open_page):
    page = open_page(world.address)
    expect(page.locator(".draft")).to_be_visible()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    reached = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        name = "(e => e.getAttribute('aria-label') || e.labels?.[0]?.textContent.trim() || e.textContent.trim())"
        reached.add(page.evaluate(f"{name}(document.activeElement)"))
    wanted = {
        "My texts",
        "Versions",
        "Save as Markdown",
        "Save as JSON",
        "Your text",
        "Your message",
        "Send",
        "About you",
    }
    assert wanted <= {text.split("\n")[0] for text in reached}
    page.locator(".draft").focus()
    page.keyboard.type(VEINS)
    page.get_by_label("Your message").focus()
    page.keyboard.type(DRAFT_QUESTION)
    page.keyboard.press("Control+Enter")
    expect(page.locator(".about")).to_be_visible()
    page.locator(".margin summary").first.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".margin .remark").first).to_have_attribute("open", "")
    page.get_by_role("button", name="My texts").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


NAMELESS = """() => {
  const named = e => e.getAttribute("aria-label") || e.textContent.trim() ||
    [...(e.labels ?? [])].some(label => label.textContent.trim());
  return [...document.querySelectorAll("button, a[href], input, select, textarea, [role=button], summary")]
    .filter(e => e.checkVisibility() && !named(e)).map(e => e.outerHTML.slice(0, 90));
}"""


def test_a_screen_reader_finds_landmarks_names_and_what_happens(world, open_page):
    page = open_page(world.address)
    write(page, VEINS)
    ask(page, DRAFT_QUESTION)
    for role in ("banner", "navigation", "main", "complementary"):
        expect(page.get_by_role(role).first).to_be_visible()
    for name in ("Your text", "Assistant"):
        expect(page.get_by_role("region", name=name)).to_be_visible()
    expect(page.locator("[aria-live=polite]")).to_have_text("The answer is there")
    expect(page.get_by_label("Score 3 of 5")).to_be_visible()
    assert page.evaluate(NAMELESS) == []
    assert page.locator("h1").count() == 1
    page.get_by_role("button", name="Argue about a grade").click()
    expect(page.get_by_role("button", name="Argue about a grade")).to_have_attribute("aria-current", "page")
    assert page.evaluate(NAMELESS) == []


CONTRAST = """selector => {
  const light = c => {
    const [r, g, b] = c.map(v => (v /= 255) <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const colour = (e, of) => getComputedStyle(e)[of].match(/[\\d.]+/g).map(Number);
  const ground = e => colour(e, "backgroundColor")[3] === 0 ? ground(e.parentElement) : colour(e, "backgroundColor");
  const shown = e => e.checkVisibility() && e.textContent.trim();
  return [...document.querySelectorAll(selector)].filter(shown).map(e => {
    const both = [colour(e, "color"), ground(e)].map(c => light(c.slice(0, 3)));
    const ratio = (Math.max(...both) + .05) / (Math.min(...both) + .05);
    return [ratio, e.className || e.tagName, e.textContent.slice(0, 30)];
  }).filter(([ratio]) => ratio < 4.5);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground_in_light_and_dark(world, open_page, scheme):
    page = open_page(world.address, color_scheme=scheme)
    ask(page, "How to start? Which words do I need about veins?")
    write(page, VEINS)
    ask(page, DRAFT_QUESTION)
    page.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
    texts = "p, li, h1, h2, h3, h4, button:not(:disabled), .button, summary, label, .hint, .draft"
    assert page.evaluate(CONTRAST, texts) == []
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g)[0] < 60")
    assert dark == (scheme == "dark")


def test_on_a_phone_text_and_assistant_are_one_tap_apart_and_nothing_runs_over(world, open_page):
    page = open_page(world.address, **PHONE)
    write(page, VEINS)
    expect(page.get_by_label("Your message")).to_be_hidden()
    page.get_by_role("button", name="Assistant", exact=True).tap()
    ask(page, DRAFT_QUESTION)
    expect(page.locator(".draft")).to_be_hidden()
    page.get_by_role("button", name="Your text", exact=True).tap()
    expect(page.locator(".margin .remark").first).to_be_visible()
    too_wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    assert not page.evaluate(too_wide)
    page.get_by_role("button", name="Argue about a grade").tap()
    page.get_by_role("button", name="Take my text").tap()
    page.get_by_role("button", name="Grade", exact=True).tap()
    expect(page.locator(".grade-line")).to_contain_text("level 1")
    assert not page.evaluate(too_wide)


def test_remarks_stand_beside_their_sentence_on_a_wide_page_and_say_when_it_has_gone(world, open_page):
    page = open_page(world.address, viewport={"width": 1500, "height": 900})
    write(page, "One.\n\nTwo.\n\nThree.\n\nThe blood in them is blue. More.")
    ask(page, DRAFT_QUESTION)
    mark, remark = page.locator(".mirror mark"), page.locator(".margin .remark")
    assert abs(mark.bounding_box()["y"] - remark.first.bounding_box()["y"]) < 12
    first, second = (one.bounding_box() for one in remark.all())
    assert second["y"] >= first["y"] + first["height"]
    write(page, "All is new now.")
    expect(mark).to_have_count(0)
    remark.first.locator("summary").click()
    expect(remark.first).to_contain_text("You have changed this sentence since.")


def test_a_weak_model_is_called_weak_and_the_page_says_where_texts_go(world, open_page):
    page = open_page(world.address)
    expect(page.get_by_text("is far too small to teach writing")).to_be_visible()
    expect(page.locator(".where")).to_have_text("scripted-teacher. Texts stay on this machine.")


def test_an_objection_changes_the_grade_and_the_graph_shows_by_which_attacks(world, open_page):
    page = open_page(world.address)
    write(page, VEINS)
    page.get_by_role("button", name="Argue about a grade").click()
    page.get_by_role("button", name="Take my text").click()
    expect(page.get_by_role("textbox", name="Essay")).to_have_value(VEINS)
    page.get_by_role("button", name="Grade", exact=True).click()
    expect(page.locator(".grade-line")).to_have_text("Grade: level 1")
    expect(page.locator(".attack")).to_have_count(5)
    page.get_by_label("What is wrong with it?").fill("My second sentence defines the word.")
    page.get_by_label("It should be").select_option("2")
    page.get_by_role("button", name="Object", exact=True).click()
    expect(page.locator(".grade-line")).to_have_text("The grade changed: level 1 → level 2")
    expect(page.locator(".verdict")).to_contain_text("argument 5 (You) on argument 2 (Mike)")
    expect(page.locator(".attack")).to_have_count(7)
    expect(page.locator(".attack.deciding")).to_have_count(2)
    fallen = page.get_by_role("button", name="Argument 2, Mike, does not stand")
    fallen.focus()
    page.keyboard.press("Enter")
    expect(page.locator(".spoken")).to_contain_text("leaves its most important word undefined")
    page.get_by_text("The graph in words").click()
    expect(page.locator(".graph-list")).to_contain_text("Argument 5 (You), level 2, stands; attacks 2 (Mike), 4 (Mike)")
    page.reload()
    page.get_by_role("button", name="Argue about a grade").click()
    expect(page.locator(".grade-line")).to_contain_text("level 2")


def test_a_participant_goes_from_consent_to_code_and_never_sees_a_condition(world_of, open_page):
    with world_of(study=True) as world:
        page = open_page(world.address)
        page.get_by_role("button", name="Begin").click()  # without agreeing: the browser asks for it
        assert world.file.owners("study") == 0
        page.get_by_label("I have read this").check()
        page.get_by_role("button", name="Begin").click()
        for part in (1, 2, 3):
            expect(page.get_by_role("heading", name=f"Text {part} of 3, with Assistant {part}")).to_be_visible()
            page.get_by_role("button", name="I am finished with this text").click()
            expect(page.get_by_role("alert").first).to_contain_text("ask this assistant at least once")
            write(page, VEINS)
            answer = ask(page, DRAFT_QUESTION)
            expect(answer).to_contain_text("You have begun well")
            said = page.locator("body").inner_text()
            for word in (*CONDITIONS, "modules", "monitor", "Score", "calls", "My texts", "JSON"):
                assert word.lower() not in said.lower(), word
            page.reload()
            expect(page.locator(".draft")).to_have_value(VEINS)
            page.get_by_role("button", name="I am finished with this text").click()
        expect(page.locator("fieldset")).to_have_count(len(QUESTIONS))
        for box in page.locator("fieldset").all()[:-1]:
            box.get_by_label("Assistant 2").check()
        page.get_by_role("button", name="Hand in").click()
        expect(page.get_by_role("alert")).to_contain_text("1 questions have no answer yet")
        page.reload()
        expect(page.get_by_text("1 questions have no answer yet.")).to_be_visible()
        page.locator("fieldset").last.get_by_label("I cannot say").check()
        page.get_by_role("button", name="Hand in").click()
        code = page.locator(".code").inner_text()
        (sheet,), unfinished = StudyFile(world.file, Sessions(world.file)).sheets()
        assert (sheet.code, unfinished) == (code, 0)
        assert sorted(filter(None, sheet.answers.values())) == [sheet.order[1]] * (len(QUESTIONS) - 1)
        page.on("dialog", lambda dialog: dialog.accept())
        page.get_by_role("button", name="Stop taking part").click()
        expect(page.get_by_label("I have read this")).to_be_visible()
        assert StudyFile(world.file, Sessions(world.file)).sheets() == ([], 0)
        assert all("422" in complaint for complaint in open_page.complaints)
        open_page.complaints.clear()
