"""The page's server: nothing that was written is lost, nobody else may ask, and a study stays blind."""

import json
import re
import time
from pathlib import Path

import pytest
from assisted import VEINS, Client, client_of, plain_words
from click.testing import CliRunner
from scripted_teacher import ScriptedTeacher

from metaprobe.cli import main
from metaprobe.records.errors import RecordError
from metaprobe_writing_assistant.page import argue_routes
from metaprobe_writing_assistant.page import sessions as sessions_module
from metaprobe_writing_assistant.page.jobs import Job
from metaprobe_writing_assistant.page.session_file import SessionFile
from metaprobe_writing_assistant.page.settings import AssistSettings, places_of
from metaprobe_writing_assistant.study.answers import read_sheets
from metaprobe_writing_assistant.study.survey import QUESTIONS, balanced_orders
from metaprobe_writing_assistant.system.contract import CONDITIONS

DRAFT = "Here is my first draft. Is it correct?"


@pytest.fixture(autouse=True)
def _words(monkeypatch: pytest.MonkeyPatch) -> None:
    plain_words(monkeypatch)


@pytest.fixture
def page(tmp_path: Path):
    with client_of(tmp_path) as client:
        yield client


@pytest.fixture
def study(tmp_path: Path):
    with client_of(tmp_path, study=True) as client:
        yield client


# --- who may ask -----------------------------------------------------------------------------------------------------


def test_the_page_and_all_that_it_loads_come_from_here(page: Client) -> None:
    index = page.http.get("/")
    assert index.status_code == 200
    assert "default-src 'none'" in index.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in index.headers["content-security-policy"]
    seen, todo = set(), re.findall(r'(?:src|href)="(/page/[^"]+)"', index.text)
    while todo:
        path = todo.pop()
        if path in seen:
            continue
        seen.add(path)
        part = page.http.get(path)
        assert part.status_code == 200, path
        todo += [f"/page/{name}" for name in re.findall(r'from "\./([^"]+)"', part.text)]
    assert len(seen) >= 10
    for path in seen | {"/"}:
        text = page.http.get(path).text.replace("http://www.w3.org/2000/svg", "")
        assert not re.search("https?://", text), path


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"host": "evil.example"}, 421),
        ({"host": "127.0.0.1.evil.example"}, 421),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"host": "localhost:8090", "origin": "http://localhost:3000"}, 403),
        ({"host": "localhost:8090", "origin": "http://127.0.0.1:8090"}, 403),
        ({"host": "localhost:8090", "origin": "http://localhost"}, 403),
        ({"host": "localhost:8090", "origin": "https://localhost:8090"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"host": "localhost:8090", "origin": "http://localhost:8090", "sec-fetch-site": "same-origin"}, 200),
        ({"host": "[::1]:8090"}, 200),
    ],
)
def test_other_web_sites_and_other_names_are_refused(page: Client, headers: dict[str, str], status: int) -> None:
    assert page.http.get("/api/sessions", headers=headers).status_code == status
    link = {**headers, "sec-fetch-site": "cross-site"}
    if status != 421 and "origin" not in headers:
        assert page.http.get("/", headers=link).status_code == 200  # a link to the page is welcome


def test_a_form_of_another_site_cannot_post(page: Client) -> None:
    answer = page.http.post("/api/sessions", content='{"task": "x"}', headers={"content-type": "text/plain"})
    assert answer.status_code == 422
    assert "expected Content-Type: application/json" in answer.json()["error"]
    assert page.ask("GET", "/api/sessions") == []


def test_an_address_that_others_reach_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="the page has no password, so it listens on this machine only"):
        AssistSettings(sessions=tmp_path / "s", host="0.0.0.0")
    named = AssistSettings(sessions=tmp_path / "s", allowed_hosts=("school.example",))
    assert "school.example" in named.names


def test_the_page_names_every_model_and_where_texts_go() -> None:
    named = {"": "smollm2-135m", "respond": "openai:big@https://user:secret@host.example:8443/v1?key=1"}
    weak, far = places_of(named, ("smollm2-135m",))
    assert (weak.part, weak.name, weak.place, weak.weak) == ("every module", "smollm2-135m", "", True)
    assert (far.name, far.place, far.weak) == ("big", "https://host.example:8443", False)
    assert places_of({"": "openai:gpt"}, ())[0].place == "the address in OPENAI_BASE_URL, or OpenAI"


# --- texts -----------------------------------------------------------------------------------------------------------


def test_a_text_is_kept_with_its_versions_and_comes_back(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    session = page.begin()
    path = f"/api/sessions/{session}"
    for revision, text in enumerate(("One.", "One. Two.", "One. Two. Three.")):
        assert page.ask("PUT", f"{path}/draft", {"text": text, "revision": revision})["revision"] == revision + 1
    assert [one["words"] for one in page.ask("GET", f"{path}/versions")] == [1]  # not one for every pause
    monkeypatch.setattr(sessions_module, "AUTOSAVE_S", 0)
    page.ask("PUT", f"{path}/draft", {"text": "Four words are here.", "revision": 3})
    page.ask("POST", f"{path}/versions")
    page.ask("POST", f"{path}/versions")  # the same again is none
    versions = page.ask("GET", f"{path}/versions")
    assert [(one["words"], one["saved"]) for one in versions] == [(1, "automatically"), (4, "automatically")]
    assert page.ask("GET", f"{path}/versions/0") == {"text": "One."}
    assert page.ask("GET", path)["draft"] == "Four words are here."
    assert page.ask("GET", "/api/sessions")[0]["title"] == "Four words are here."


def test_an_old_text_does_not_take_the_place_of_a_newer_one(page: Client) -> None:
    session = page.begin("The first window.")
    path = f"/api/sessions/{session}/draft"
    said = page.refused("PUT", path, {"text": "The second window.", "revision": 0}, 409)
    assert "changed in another window" in said
    assert page.ask("GET", f"/api/sessions/{session}")["draft"] == "The first window."


def test_a_text_with_many_versions_goes_on_and_keeps_the_newest(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sessions_module.MAX_VERSIONS == 500
    monkeypatch.setattr(sessions_module, "MAX_VERSIONS", 50)
    monkeypatch.setattr(sessions_module, "AUTOSAVE_S", 0)
    session = page.begin()
    path = f"/api/sessions/{session}"
    for revision in range(52):
        saved = page.ask("PUT", f"{path}/draft", {"text": f"Text {revision}.", "revision": revision})
        assert saved == {"revision": revision + 1}
    versions = page.ask("GET", f"{path}/versions")
    assert [one["number"] for one in versions] == list(range(2, 52))
    assert page.ask("GET", f"{path}/versions/51") == {"text": "Text 51."}
    assert "no version 1" in page.refused("GET", f"{path}/versions/1", None, 404)
    page.ask("PUT", f"{path}/draft", {"text": VEINS, "revision": 52})
    assert len(page.ask("POST", f"{path}/versions", status=201)) == 50
    assert page.turn(session, DRAFT)["state"] == "done"
    assert page.ask("GET", path)["draft"] == VEINS


def test_a_save_is_stored_and_answered_or_refused_and_not_stored(page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "AUTOSAVE_S", 0)
    session = page.begin(VEINS)
    path = f"/api/sessions/{session}"
    before = (page.ask("GET", path), page.ask("GET", f"{path}/versions"))
    with page.file._database.named():  # the text itself can be stored, and the version beside it cannot
        page.file._database.execute(
            "CREATE TRIGGER full BEFORE INSERT ON kept WHEN NEW.kind IN ('version', 'turn') AND NEW.number > 0 "
            "BEGIN SELECT RAISE(ABORT, 'full'); END"
        )
    page.refused("PUT", f"{path}/draft", {"text": "Another text.", "revision": 1}, 507)
    assert (page.ask("GET", path), page.ask("GET", f"{path}/versions")) == before
    with page.file._database.named():
        page.file._database.execute("DROP TRIGGER full")
    for _ in range(2):  # the first answer may be lost on its way
        assert page.ask("PUT", f"{path}/draft", {"text": "Another text.", "revision": 1}) == {"revision": 2}
    page.refused("PUT", f"{path}/draft", {"text": "A third text.", "revision": 1}, 409)


def traces(folder: Path, *texts: str) -> list[str]:
    """Which of the texts stand somewhere in the bytes of the files of a folder."""
    held = b"".join(path.read_bytes() for path in folder.iterdir() if path.is_file())
    return [text for text in texts if text.encode() in held]


def test_a_deleted_text_leaves_no_byte_in_the_file_or_beside_it(tmp_path: Path) -> None:
    with client_of(tmp_path) as page:
        kept = sessions_module.Sessions(page.file)
        doomed, stays = page.begin(VEINS), page.begin("Summer is hot.")
        for number in range(120):  # texts that grow, as texts do, so that pages of the file are split and freed
            for session, name in ((doomed, "PRIVATE"), (stays, "public")):
                text = f"{name} {number:03d} " * (number * 7 % 90 + 1)
                kept.save_draft(session, text, kept.get(session).revision)
                kept.keep_version(session, text, "by hand")
        page.turn(doomed, "A PRIVATE question")
        assert traces(tmp_path, "PRIVATE", "public", doomed) == ["PRIVATE", "public", doomed]
        page.ask("DELETE", f"/api/sessions/{doomed}")
        assert traces(tmp_path, "PRIVATE", VEINS, doomed) == []
        assert page.refused("GET", f"/api/sessions/{doomed}/turns/0/events", None, 404)
        assert page.ask("GET", f"/api/sessions/{stays}")["draft"].startswith("public 119")
        assert len(page.ask("GET", f"/api/sessions/{stays}/versions")) == 121


def test_a_deletion_whose_bytes_cannot_be_taken_away_says_so_and_is_ended_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metaprobe_writing_assistant.page.session_file.ERASE_S", 0.05)
    with client_of(tmp_path) as page:
        session = page.begin("A PRIVATE text. " * 2000)
        with SessionFile(page.file.path) as reader, reader._database.named(), reader._database.transaction("DEFERRED"):
            reader._database.execute("SELECT count(*) FROM kept").fetchall()
            said = page.refused("DELETE", f"/api/sessions/{session}", None, 507)
        assert "everything was deleted, but its bytes may be in the file" in said
        assert page.refused("GET", f"/api/sessions/{session}", None, 404)
        assert traces(tmp_path, "PRIVATE") == ["PRIVATE"]
        with SessionFile(page.file.path):
            assert traces(tmp_path, "PRIVATE") == []


def test_two_sessions_know_nothing_of_each_other(page: Client) -> None:
    one, other = page.begin(VEINS), page.begin("Summer is hot.")
    assert page.turn(one, DRAFT)["state"] == "done"
    assert page.ask("GET", f"/api/sessions/{other}")["turns"] == []
    page.ask("DELETE", f"/api/sessions/{one}")
    assert "it may have been deleted" in page.refused("GET", f"/api/sessions/{one}", None, 404)
    assert page.ask("GET", f"/api/sessions/{other}")["draft"] == "Summer is hot."
    assert page.file.entries("turn", one) == page.file.entries("version", one) == []


def test_exports_hold_everything_that_was_written_and_said(page: Client) -> None:
    session = page.begin(VEINS, task="Why do veins look blue?")
    page.turn(session, "I do not know how to start: which words do I need?")
    page.turn(session, DRAFT)
    whole = page.ask("GET", f"/api/sessions/{session}/export.json")
    assert whole["draft"] == VEINS
    assert [turn["message"] for turn in whole["turns"]][1] == DRAFT
    assert whole["versions"][0]["text"] == VEINS
    text = page.http.get(f"/api/sessions/{session}/export.md")
    assert text.headers["content-disposition"].endswith('.md"')
    for part in (
        VEINS,
        DRAFT,
        "Task: Why do veins look blue?",
        "Score: 3 of 5",
        "**vein** (noun)",
        "> monitor: On \u201cVeins",
    ):
        assert part in text.text


# --- turns -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_turn_is_answered_in_the_condition_that_was_chosen(page: Client, condition: str) -> None:
    session = page.begin(VEINS)
    page.ask("PUT", f"/api/sessions/{session}/condition", {"condition": condition})
    turn = page.turn(session, DRAFT)
    assert (turn["state"], turn["condition"], turn["reply"]["condition"]) == ("done", condition, condition)
    assert (turn["reply"]["rubric"] is not None) == (condition != "single")
    kinds = {remark["kind"] for remark in turn["reply"]["remarks"]}
    assert kinds == ({"monitor", "control"} if condition == "metacrit" else set())
    assert turn["calls"] == len(page.teacher.asked)
    assert turn["tokens"] > 100
    assert page.ask("GET", f"/api/sessions/{session}")["turns"] == [turn]


def test_an_answer_comes_in_pieces_after_the_stages_that_led_to_it(page: Client) -> None:
    session = page.begin(VEINS)
    page.ask("POST", f"/api/sessions/{session}/turns", {"message": DRAFT})
    events = page.events(f"/api/sessions/{session}/turns/0/events")
    stages = [event["stage"] for event in events if "stage" in event]
    assert stages[-1] == "respond"
    assert {"stage", "topic", "assess", "monitor", "control"} <= set(stages)
    pieces = [event["text"] for event in events if "text" in event]
    assert len(pieces) > 20
    assert "".join(pieces).strip() == events[-1]["turn"]["text"]
    assert page.events(f"/api/sessions/{session}/turns/0/events") == events  # whoever comes late hears all of it
    late = page.http.get(f"/api/sessions/{session}/turns/0/events", headers={"last-event-id": str(len(events) - 2)})
    assert late.text.count("data: {") == 2  # the turn, and the end


def test_earlier_turns_and_the_profile_are_in_the_next_request(page: Client) -> None:
    session = page.begin(VEINS)
    page.ask("PUT", f"/api/sessions/{session}/profile", {"proficiency": "two years of English", "goals": ""})
    first = page.turn(session, "Which words do I need?")
    page.turn(session, DRAFT)
    prompt = "\n".join(message.content for message in page.teacher.asked[-1].messages)
    assert "two years of English" in prompt
    assert "Which words do I need?" in prompt
    assert first["text"][:40] in prompt
    assert [request.stage for request in page.teacher.asked].count("profile") == 1  # what was found is not sought again


def test_a_second_message_waits_until_the_first_is_answered(tmp_path: Path) -> None:
    with client_of(tmp_path, ScriptedTeacher(hold=lambda request: request.stage == "respond")) as page:
        session = page.begin(VEINS)
        path = f"/api/sessions/{session}/turns"
        page.ask("POST", path, {"message": "One?"})
        assert "still answers your last message" in page.refused("POST", path, {"message": "Two?"}, 409)
        assert page.ask("POST", f"{path}/0/stop")["state"] == "stopped"
        page.teacher.hold = lambda request: False
        assert page.turn(session, "Two?")["state"] == "done"


def test_a_stopped_answer_keeps_what_had_come_and_is_no_history(tmp_path: Path) -> None:
    with client_of(tmp_path, ScriptedTeacher(hold=lambda request: request.stage == "respond")) as page:
        session = page.begin(VEINS)
        page.ask("POST", f"/api/sessions/{session}/turns", {"message": "STOPPED QUESTION"})
        deadline = time.monotonic() + 20
        while page.teacher.asked[-1:] == [] or page.teacher.asked[-1].stage != "respond":
            assert time.monotonic() < deadline
            page.http.get("/api/sessions")
        page.http.get("/api/sessions")
        stopped = page.ask("POST", f"/api/sessions/{session}/turns/0/stop")
        assert stopped["state"] == "stopped"
        assert stopped["text"]
        assert "You have begun well".startswith(stopped["text"][:10])
        page.teacher.hold = lambda request: False
        page.turn(session, DRAFT)
        assert "STOPPED QUESTION" not in "".join(m.content for m in page.teacher.asked[-1].messages)


def test_where_the_model_is_gone_the_message_is_kept_with_the_reason(page: Client) -> None:
    session = page.begin(VEINS)
    page.teacher.gone = True
    turn = page.turn(session, DRAFT)
    assert turn["state"] == "failed"
    assert "connection refused. Start its server, and ask again" in turn["error"]
    page.teacher.gone = False
    assert page.turn(session, DRAFT)["state"] == "done"
    kept = page.ask("GET", f"/api/sessions/{session}")
    assert [(one["state"], one["message"]) for one in kept["turns"]] == [("failed", DRAFT), ("done", DRAFT)]
    assert kept["draft"] == VEINS


def test_a_turn_that_a_killed_program_left_is_ended_when_it_is_looked_at(page: Client) -> None:
    session = page.begin(VEINS)
    kept = sessions_module.Sessions(page.file)
    kept.begin_turn(session, "Left alone", VEINS, "multi")
    turn = page.ask("GET", f"/api/sessions/{session}")["turns"][0]
    assert (turn["state"], turn["error"]) == ("failed", "the program ended while this was written")
    assert page.refused("GET", f"/api/sessions/{session}/turns/0/events", None, 404)


def test_a_full_disk_is_said_and_everything_written_before_stays(page: Client) -> None:
    session = page.begin(VEINS)
    path = f"/api/sessions/{session}"
    page.file.limit_pages(1)
    long = "A word more. " * 40000
    said = page.refused("PUT", f"{path}/draft", {"text": long, "revision": 1}, 507)
    assert "database or disk is full" in said
    assert "that the disk has room" in said
    assert page.ask("GET", path)["draft"] == VEINS
    page.file.limit_pages(100_000)
    assert page.ask("PUT", f"{path}/draft", {"text": long, "revision": 1})["revision"] == 2


def test_an_answer_that_cannot_be_kept_is_still_told(tmp_path: Path) -> None:
    with client_of(tmp_path, ScriptedTeacher(hold=lambda request: request.stage == "respond")) as page:
        session = page.begin(VEINS)
        page.ask("POST", f"/api/sessions/{session}/turns", {"message": DRAFT})
        with page.file._database.named():
            pages = page.file._database.execute("PRAGMA page_count").fetchone()[0]
        page.file.limit_pages(pages)
        for _ in range(60):  # fill what room the file has left
            if page.http.post("/api/sessions", json={"task": "fill " * 300}).status_code == 507:
                break
        page.teacher.hold = lambda request: False
        events = page.events(f"/api/sessions/{session}/turns/0/events")
        assert "disk is full" in events[-1]["unkept"]
        assert events[-1]["state"] == "done"
        assert events[-1]["text"].startswith("You have begun well")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"message": ""}, "there is nothing to answer yet"),
        ({"message": 5}, "message is int; expected a text"),
        ({}, "message is NoneType; expected a text"),
    ],
)
def test_a_bad_message_is_refused_with_what_was_expected(page: Client, body: dict[str, object], said: str) -> None:
    session = page.begin()
    assert said in page.refused("POST", f"/api/sessions/{session}/turns", body, 422)
    assert page.ask("GET", f"/api/sessions/{session}")["turns"] == []


def test_other_bad_requests_are_refused(tmp_path: Path) -> None:
    with client_of(tmp_path, max_body_bytes=1 << 20) as page:
        session = page.begin()
        path = f"/api/sessions/{session}"
        refused = page.refused("PUT", f"{path}/draft", {"text": "x" * (2 << 20), "revision": 0}, 413)
        assert "this is more than 1 MB; take a part of the text. Nothing was changed" in refused
        assert "revision is True" in page.refused("PUT", f"{path}/draft", {"text": "x", "revision": True}, 422)
        assert "expected one of single, multi, metacrit" in page.refused(
            "POST", "/api/sessions", {"condition": "x"}, 422
        )
        assert "goals is longer than 500" in page.refused("PUT", f"{path}/profile", {"goals": "x" * 501}, 422)
        bad = page.http.post("/api/sessions", content="{", headers={"content-type": "application/json"})
        assert "the request is not JSON" in bad.json()["error"]
        assert page.refused("GET", "/page/../app.py", None, 404)
        assert page.refused("GET", "/page/secrets.txt", None, 404)


def test_fifty_thousand_words_are_kept_whole_and_answered_with_a_note(page: Client) -> None:
    essay = "The sky is wide and the sea is deep. " * 5556
    assert len(essay.split()) > 50_000
    session = page.begin(essay)
    turn = page.turn(session, "Please evaluate my final essay.")
    assert turn["state"] == "done"
    assert any("Nothing of it is lost" in note for note in turn["reply"]["notes"])
    assert page.ask("GET", f"/api/sessions/{session}")["draft"] == essay


def test_what_a_text_holds_stays_text(page: Client) -> None:
    nasty = "<script>alert(1)</script> \u202e عربي 漢字 \x00 end"
    session = page.begin(nasty)
    assert page.ask("GET", f"/api/sessions/{session}")["draft"] == nasty.replace("\x00", "")
    assert page.turn(session, nasty)["state"] == "done"


def test_half_of_an_emoji_costs_that_character_and_not_the_text(page: Client) -> None:
    path = f"/api/sessions/{page.begin('Before.')}"
    body = json.dumps({"text": "Cut \ud83d here", "revision": 1})  # as a browser writes it
    assert page.http.put(f"{path}/draft", content=body, headers={"content-type": "application/json"}).is_success
    assert page.ask("GET", path)["draft"] == "Cut \ufffd here"


def test_a_file_that_is_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.sqlite"
    path.write_bytes(b"this is no database, it is somebody's notes" * 100)
    with pytest.raises(RecordError, match=r"file of writing sessions .* is damaged"):
        SessionFile(path)


# --- a study ---------------------------------------------------------------------------------------------------------


def take_part(page: Client, place: int | None = 0) -> dict[str, object]:
    taking = page.ask("POST", "/api/study", {"consent": True})
    path = f"/api/study/{taking['token']}"
    for part in range(3):
        page.turn(taking["session"], DRAFT)
        taking = page.ask("POST", f"{path}/next", {"part": part})
    page.ask("PUT", f"{path}/answers", {question["id"]: place for question in taking["questions"]})
    return dict(page.ask("POST", f"{path}/finish"))


def test_nothing_is_kept_before_somebody_agrees(study: Client) -> None:
    assert "nothing is kept before you agree" in study.refused("POST", "/api/study", {"consent": False}, 422)
    assert study.refused("POST", "/api/sessions", {}, 422)
    assert study.file.owners("study") == study.file.owners("session") == 0


def test_no_answer_of_the_server_tells_a_participant_the_condition(study: Client) -> None:
    """Everything that the page gets on the whole way, in all six orders."""
    heard = []
    original = study.http.request

    def listening(*args: object, **named: object) -> object:
        answer = original(*args, **named)  # type: ignore[arg-type]
        heard.append(answer.text)
        return answer

    study.http.request = listening  # type: ignore[method-assign]
    for _ in range(6):
        take_part(study)
    about = json.loads(study.http.get("/api/about").text)
    assert about["study"] is True
    assert heard
    for word in (*(f'"{name}"' for name in CONDITIONS), "rubric", "remarks", '"order"', '"calls"', '"stage"'):
        assert not any(word in text for text in heard), word


def test_participants_come_in_balanced_orders_and_their_answers_are_exported(study: Client, tmp_path: Path) -> None:
    for _ in range(6):
        take_part(study, place=0)
    unfinished = study.ask("POST", "/api/study", {"consent": True})
    out = tmp_path / "answers.jsonl"
    done = CliRunner().invoke(main, ["study", "export", str(study.file.path), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "6 participants; 1 others have not handed in" in done.output
    sheets = read_sheets(out)
    assert sorted(sheet.order for sheet in sheets) == sorted(balanced_orders(CONDITIONS))
    assert all(set(sheet.answers) == {question.id for question in QUESTIONS} for sheet in sheets)
    assert all(set(sheet.answers.values()) == {sheet.order[0]} for sheet in sheets)
    assert unfinished["code"] not in {sheet.code for sheet in sheets}
    shown = CliRunner().invoke(main, ["study", "analyse", str(out)])
    assert shown.output.startswith("6 participants, in 6 different orders.")


def test_each_part_has_another_task_and_needs_an_answer_before_the_next(study: Client) -> None:
    taking = study.ask("POST", "/api/study", {"consent": True})
    path = f"/api/study/{taking['token']}"
    assert "ask this assistant at least once" in study.refused("POST", f"{path}/next", {"part": 0}, 422)
    assert "the survey comes after the three texts" in study.refused("PUT", f"{path}/answers", {"ct1": 0}, 422)
    tasks = []
    for part in range(3):
        tasks.append(taking["task"]["id"])
        study.turn(taking["session"], DRAFT)
        taking = study.ask("POST", f"{path}/next", {"part": part})
        again = study.ask("POST", f"{path}/next", {"part": part})  # a second click changes nothing
        assert again == taking
    assert len(set(tasks)) == 3
    assert taking["step"] == "survey"
    assert "23 questions have no answer yet" in study.refused("POST", f"{path}/finish", None, 422)
    assert study.refused("PUT", f"{path}/answers", {"ct1": 3}, 422)
    assert study.refused("PUT", f"{path}/answers", {"xx": 0}, 422)
    study.ask("PUT", f"{path}/answers", {"ct1": None})
    assert study.ask("GET", path)["answers"] == {"ct1": None}


def test_whoever_withdraws_leaves_nothing_and_orders_stay_in_turn(study: Client) -> None:
    first = study.ask("POST", "/api/study", {"consent": True})
    study.turn(first["session"], "A PRIVATE QUESTION")
    study.ask("DELETE", f"/api/study/{first['token']}")
    assert study.refused("GET", f"/api/study/{first['token']}", None, 404)
    with study.file._database.named():
        bodies = " ".join(row[0] for row in study.file._database.execute("SELECT body FROM kept"))
    assert "PRIVATE" not in bodies
    assert first["code"] not in bodies
    assert traces(study.file.path.parent, "PRIVATE", first["code"], first["token"], first["session"]) == []
    take_part(study)
    (body,) = [body for _, _, body in study.file.first_entries("study")]
    assert tuple(body["order"]) == balanced_orders(CONDITIONS)[1]


def test_a_participants_texts_are_not_listed_exported_or_switched(study: Client) -> None:
    session = study.ask("POST", "/api/study", {"consent": True})["session"]
    path = f"/api/sessions/{session}"
    assert study.ask("GET", "/api/sessions") == []
    for method, end, body in (
        ("GET", "/export.json", None),
        ("GET", "/export.md", None),
        ("PUT", "/condition", {"condition": "single"}),
        ("DELETE", "", None),
    ):
        assert study.refused(method, path + end, body, 422)


# --- contests --------------------------------------------------------------------------------------------------------


def grade(page: Client, essay: str = VEINS) -> tuple[str, list[dict[str, object]]]:
    begun = page.ask("POST", "/api/gradings", {"essay": essay, "trait": "issue"})
    return begun["id"], page.events(f"/api/gradings/jobs/{begun['job']}/events")


def contest(page: Client, name: str, text: str, level: int | None) -> dict[str, object]:
    begun = page.ask("POST", f"/api/gradings/{name}/contests", {"text": text, "level": level})
    return page.events(f"/api/gradings/jobs/{begun['job']}/events")[-1]


def test_an_essay_is_graded_and_the_graph_says_who_attacks_whom(page: Client) -> None:
    name, events = grade(page)
    grading = events[-1]["grading"]
    assert [event["stage"] for event in events if "stage" in event][-1] == "answer"
    assert grading["level"] == 1
    assert [node["speaker"] for node in grading["nodes"]] == ["Sarah", "Mike", "Sarah", "Mike"]
    assert [node["level"] for node in grading["nodes"]] == [2, 1, 2, 1]
    assert {tuple(pair) for pair in grading["attacks"]} == {(0, 1), (1, 0), (2, 1), (3, 0), (1, 2)}
    assert page.ask("GET", f"/api/gradings/{name}")["grading"] == grading


def test_a_contest_says_which_attacks_decided_and_repeats_what_was_said(page: Client) -> None:
    name, _ = grade(page)
    asked = len(page.teacher.asked)
    found = contest(page, name, "My second sentence defines the word.", 2)["contest"]
    again = [(request.stage, request.agent) for request in page.teacher.asked[asked:]]
    assert set(again) == {("attack", "teacher"), ("answer", "teacher")}  # no argument is made anew
    assert len(again) == 8 + 1
    assert (found["before"]["level"], found["after"]["level"]) == (1, 2)
    assert found["after"]["nodes"][-1]["speaker"] == "You"
    assert found["after"]["nodes"][-1]["level"] == 2
    assert found["before"]["nodes"] != found["after"]["nodes"][:-1]
    assert found["stands"] is True
    assert [tuple(pair) for pair in found["deciding"]] == [(4, 1), (4, 3)]
    assert found["changed"] == [0, 1, 3]
    standing = [node["standing"] for node in found["after"]["nodes"]]
    assert standing == [True, False, True, False, True]
    second = contest(page, name, "Once more.", None)["contest"]
    assert second["before"] == found["before"]
    assert len(page.ask("GET", f"/api/gradings/{name}")["contests"]) == 2


def test_bad_essays_and_objections_are_refused_or_told(page: Client) -> None:
    assert "there is no essay to grade yet" in grade(page, " ")[1][-1]["error"]
    long = {"essay": "word " * 1201, "trait": "issue"}
    assert "the essay has 1201 words; take at most 1200" in page.refused("POST", "/api/gradings", long, 422)
    unknown = page.ask("POST", "/api/gradings", {"essay": VEINS, "trait": "style"})
    told = page.events(f"/api/gradings/jobs/{unknown['job']}/events")[-1]
    assert "expected one of issue, evidence, position, conclusion" in told["error"]
    name, _ = grade(page)
    assert "write what you object to first" in contest(page, name, "  ", 2)["error"]
    assert "say it in 4000 or fewer" in contest(page, name, "x" * 4001, 2)["error"]
    assert "level 7: expected 0 to 2" in contest(page, name, "No.", 7)["error"]
    page.teacher.gone = True
    assert "connection refused" in contest(page, name, "But I do.", 2)["error"]
    assert page.ask("GET", f"/api/gradings/{name}")["contests"] == []


def test_a_fault_of_the_program_is_told_to_the_page_and_goes_on_to_the_log() -> None:
    job = Job("a")
    with pytest.raises(KeyError), argue_routes._errors_told(job):  # whoever runs the job logs what it raised
        raise KeyError("what the essay said")
    assert job.events == [{"error": "the program failed (KeyError); see its log"}]


def test_a_grading_of_an_earlier_program_can_be_read_and_not_contested(tmp_path: Path) -> None:
    with client_of(tmp_path) as page:
        name, events = grade(page)
    with client_of(tmp_path) as page:
        assert page.ask("GET", f"/api/gradings/{name}")["grading"] == events[-1]["grading"]
        assert "grade the essay again" in contest(page, name, "No.", 2)["error"]


@pytest.mark.parametrize("depth", [9, 990, 200_000])
@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_json_that_nests_deep_is_refused_everywhere_and_costs_nothing(page: Client, depth: int, opening: str) -> None:
    session = page.begin("Summer is hot.")
    closing = "]" if opening == "[" else "}"
    deep = opening * depth + "1" + closing * depth
    at = f"/api/sessions/{session}"
    asked = {
        ("POST", "/api/sessions"): ("condition", "task"),
        ("POST", f"{at}/turns"): ("message",),
        ("POST", "/api/gradings"): ("essay", "trait"),
        ("POST", "/api/study"): ("consent",),
        ("PUT", f"{at}/draft"): ("text", "revision"),
        ("PUT", f"{at}/profile"): ("level", "goals"),
        ("PUT", f"{at}/condition"): ("condition",),
    }
    for (method, path), fields in asked.items():
        for body in (deep, *(f'{{"{field}": {deep}}}' for field in fields)):
            answer = page.http.request(method, path, content=body, headers={"content-type": "application/json"})
            assert 400 <= answer.status_code < 500, (method, path, body[:20], answer.status_code, answer.text[:100])
            assert "error" in answer.json() or answer.status_code in (404, 405)
    assert page.ask("GET", f"/api/sessions/{session}")["draft"] == "Summer is hot."
