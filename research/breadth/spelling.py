"""Families about the letters and the order of words."""

from random import Random

from research.breadth.lexicon import WORDS
from research.metacog_eval.templates import Draft, pick

ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
ALPHABET = "abcdefghijklmnopqrstuvwxyz"


def _word(rng: Random, level: int) -> str:
    low, high = ((3, 4), (5, 7), (8, 14))[level]
    return rng.choice([word for word in WORDS if low <= len(word) <= high])


def letter_counts(rng: Random, level: int) -> Draft:
    word = _word(rng, level)
    letter = rng.choice(word if rng.random() < 0.85 else ALPHABET)
    if level and rng.random() < 0.5:
        letter = max(sorted(set(word)), key=word.count)
    return Draft(
        f'How many times does the letter "{letter}" occur in the word "{word}"?',
        (str(word.count(letter)),),
        "number",
        (),
        f"letters/{word}",
    )


def word_lengths(rng: Random, level: int) -> Draft:
    word = _word(rng, level)
    return Draft(f'How many letters does the word "{word}" have?', (str(len(word)),), "number", (), f"letters/{word}")


def nth_letters(rng: Random, level: int) -> Draft:
    while True:
        word = _word(rng, level)
        place = rng.randrange(min(len(word), 8))
        last = rng.random() < 0.25
        letter = word[-1] if last else word[place]
        if letter not in "ai":  # "a" and "i" are words of a sentence too
            break
    name = "last" if last else ORDINALS[place]
    return Draft(f'What is the {name} letter of the word "{word}"?', (letter,), "exact", (), f"letters/{word}")


def reversals(rng: Random, level: int) -> Draft:
    while True:
        word = _word(rng, level)
        if word != word[::-1]:
            return Draft(f'What is the word "{word}" written backwards?', (word[::-1],), "exact", (), f"letters/{word}")


def alphabetical(rng: Random, level: int) -> Draft:
    """Which of some words comes first in a dictionary; harder where they begin alike."""
    if level == 0:
        words = rng.sample(WORDS, 2)
    else:
        start = rng.choice(WORDS)[0]
        same = [word for word in WORDS if word[0] == start]
        if len(same) < level + 1:
            return alphabetical(rng, level)
        words = rng.sample(same, 2 if level == 1 else min(4, len(same)))
    if level == 0 and words[0][0] == words[1][0]:
        return alphabetical(rng, level)
    end, gold = rng.choice((("first", min(words)), ("last", max(words))))
    return pick(f"In a dictionary, which of these words comes {end}: {{options}}?", gold, words, rng)


def alphabet_steps(rng: Random, level: int) -> Draft:
    while True:
        step = rng.randint(*((1, 1), (2, 4), (5, 12))[level])
        back = rng.random() < (0.3, 0.4, 0.5)[level]
        at = rng.randrange(26)
        to = at - step if back else at + step
        if 0 <= to < 26 and ALPHABET[to] not in "ai":
            break
    way = "before" if back else "after"
    places = "directly" if step == 1 else f"{step} places"
    return Draft(f"Which letter of the alphabet comes {places} {way} {ALPHABET[at].upper()}?", (ALPHABET[to].upper(),))


def initials(rng: Random, level: int) -> Draft:
    words = rng.sample(WORDS, level + 2)
    first = level < 2 or rng.random() < 0.6
    gold = "".join(word[0 if first else -1] for word in words).upper()
    end = "first" if first else "last"
    return Draft(
        f"The words are: {', '.join(words)}. What do their {end} letters spell in capitals?",
        (gold, gold.lower(), gold.title()),
    )


FAMILIES = {
    "letter-counts": letter_counts,
    "word-lengths": word_lengths,
    "nth-letters": nth_letters,
    "reversals": reversals,
    "alphabetical": alphabetical,
    "alphabet-steps": alphabet_steps,
    "initials": initials,
}
