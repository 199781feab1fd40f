"""The vocabulary module: words that the learner needs, WordNet's entries for them, and an explanation of each."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from metaprobe.records.spelling import AT_LINE
from metaprobe_writing_assistant.system.asking import Work, quote_profile
from metaprobe_writing_assistant.system.contract import Card, Profile
from metaprobe_writing_assistant.system.wordnet import WordEntry, look_up

FETCH, EXPLAIN = "words", "explain"
AGENTS = {FETCH: "vocab-fetcher", EXPLAIN: "vocab-explainer"}
FETCH_TOKENS, EXPLAIN_TOKENS = 48, 320
MAX_CARDS = 6
"""Most words that are explained: a learner cannot take in more at once."""
MAX_TERM_WORDS = 3
"""Most words of a term; a longer term is a sentence."""

MAX_TERM_CHARS = 100
"""Most characters of a term; a longer term is no word of any language."""


async def make_cards(work: Work, topic: str | None, profile: Profile) -> tuple[Card, ...]:
    """Returns a card a word; none if the model lists no words.

    Raises `MissingExtra` if WordNet is not installed.

    Args:
        work: the turn.
        topic: the topic.
        profile: the profile.
    """
    slots: dict[str, Any] = {"topic": topic or "(not named)", "quoted_profile": quote_profile(profile)}
    words_call = await work.ask("words", stage=FETCH, agent=AGENTS[FETCH], max_tokens=FETCH_TOKENS, **slots)
    words = read_words(words_call.text)
    if not words:
        work.note("The model listed no words to explain.")
        return ()
    entries = {word: look_up(word) for word in words}
    explain_call = await work.ask(
        "explain",
        stage=EXPLAIN,
        agent=AGENTS[EXPLAIN],
        parent=words_call,
        max_tokens=EXPLAIN_TOKENS,
        entries="\n".join(entry_line(word, entry) for word, entry in entries.items()),
        **slots,
    )
    return tuple(make_card(word, entry, read_explanations(explain_call.text, words)) for word, entry in entries.items())


def read_words(text: str) -> list[str]:
    """Returns the words of a list, each once, as written but without numbers and marks; `MAX_CARDS` at most."""
    words: dict[str, str] = {}
    for part in re.split(r"[,;\n]", text):
        word = re.sub(r"^\W*(?:\d+\W+)?|(?<![^\w)])[^\w)]+$", "", part.split(":")[0]).strip()
        is_short = len(word) <= MAX_TERM_CHARS and len(word.split()) <= MAX_TERM_WORDS
        if word and is_short and re.search(r"[^\W\d_]", word):
            words.setdefault(word.lower(), word)
    return list(words.values())[:MAX_CARDS]


def entry_line(word: str, entry: WordEntry | None) -> str:
    """Returns the line about a word that the explainer reads."""
    if entry is None:
        return f"{word}: not in the dictionary"
    parts = [f"{word} ({entry.part_of_speech}): {entry.definition}"]
    parts += [f"also: {', '.join(entry.synonyms)}"] if entry.synonyms else []
    parts += [f'as in "{entry.example}"'] if entry.example else []
    return "; ".join(parts)


def read_explanations(text: str, words: Sequence[str]) -> dict[str, str]:
    """Returns what a text says about each word on a line `word: explanation`; words without a line are left out."""
    explanations: dict[str, str] = {}
    for word in words:
        line = re.search(
            rf"{AT_LINE}(?:\d+\W+)?{re.escape(word)}\W*?[:\-\u2013]\s*(\S.*)$", text, re.IGNORECASE | re.MULTILINE
        )
        if line:
            explanations[word] = line[1].strip(" *")
    return explanations


def make_card(word: str, entry: WordEntry | None, explanations: Mapping[str, str]) -> Card:
    """Returns the card of a word from what is known about it.

    Args:
        word: the word.
        entry: WordNet's entry; None if it has none.
        explanations: the model's explanations.
    """
    explanation = explanations.get(word, "")
    if entry is None:
        return Card(word, "", "", "", explanation, "")
    return Card(word, entry.part_of_speech, entry.definition, entry.example, explanation, entry.source)


def cards_text(cards: Sequence[Card]) -> str:
    """Returns the cards as the final response reads them."""
    return "\n".join(f"{card.word}: {card.explanation or card.definition or 'no explanation'}" for card in cards)
