"""Families about what words mean, in English and in three other languages."""

from random import Random

from research.breadth.lexicon import (
    ANTONYMS,
    GROUPS,
    NEAR_IN_MEANING,
    PLURALS,
    RELATED,
    SAME_RELATION,
    TRANSLATIONS,
    VERBS,
)
from research.breadth.numbers import yes_no
from research.metacog_eval.facts import accepted
from research.metacog_eval.templates import Draft, pick

LANGUAGES = ("English", "German", "French", "Spanish")
ARTICLES = (
    (),
    ("der", "die", "das", "ein", "eine"),
    ("le", "la", "les", "un", "une"),
    ("el", "la", "los", "las", "un", "una"),
)
"""Of each language: a word may be given with its article."""


def _third(rows: tuple[tuple[str, ...], ...], level: int) -> tuple[tuple[str, ...], ...]:
    """The part of a list, ordered from common to rare, that a level draws from."""
    return rows[level * len(rows) // 3 : (level + 1) * len(rows) // 3]


def translations_into(rng: Random, level: int) -> Draft:
    row = rng.choice(_third(TRANSLATIONS, level))
    to = rng.choice((1, 2, 3))
    gold = list(accepted(row[to]))
    with_article = [f"{article} {word}" for word in gold for article in ARTICLES[to]]
    elided = [f"l'{word}" for word in gold if LANGUAGES[to] == "French"]
    english = accepted(row[0])[0]
    text = f'What is the {LANGUAGES[to]} word for "{english}"?'
    return Draft(text, (*gold, *with_article, *elided), "exact", (), f"word/{english}")


def translations_from(rng: Random, level: int) -> Draft:
    row = rng.choice(_third(TRANSLATIONS, level))
    of = rng.choice((1, 2, 3))
    word = accepted(row[of])[0]
    return Draft(
        f'What does the {LANGUAGES[of]} word "{word}" mean in English?',
        accepted(row[0]),
        "exact",
        (),
        f"word/{accepted(row[0])[0]}",
    )


def translations_between(rng: Random, level: int) -> Draft:
    """True or false pairs of words, yes or no."""
    rows = _third(TRANSLATIONS, level)
    row, other = rng.sample(rows, 2)
    of, to = rng.sample((1, 2, 3), 2)
    holds = rng.random() < 0.5
    shown = accepted((row if holds else other)[to])[0]
    text = (
        f'Does the {LANGUAGES[of]} word "{accepted(row[of])[0]}" mean the same as the {LANGUAGES[to]} word "{shown}"?'
    )
    return yes_no(text, holds, fact=f"word/{accepted(row[0])[0]}")


def antonyms(rng: Random, level: int) -> Draft:
    pairs = _third(ANTONYMS, level)
    pair = rng.choice(pairs)
    shown, gold = pair if rng.random() < 0.5 else pair[::-1]
    near = {pair[0]}.union(*(words for words in NEAR_IN_MEANING if pair[0] in words))
    beside = [rng.choice(other) for other in rng.sample([other for other in ANTONYMS if other[0] not in near], 3)]
    fact = f"antonym/{pair[0]}"
    return pick(f'Which word means the opposite of "{shown}": {{options}}?', gold, [gold, *beside], rng, fact=fact)


def odd_words(rng: Random, level: int) -> Draft:
    """Which word does not belong; the odd word is of a related kind at the highest level."""
    kinds = rng.sample(sorted(GROUPS), 2)
    if level == 2:
        kinds = rng.sample(sorted(rng.choice(RELATED)), 2)
    gold = rng.choice(GROUPS[kinds[1]])
    words = [*rng.sample(GROUPS[kinds[0]], (3, 5, 4)[level]), gold]
    return pick("One of these words is of another kind than the rest: {options}. Which one is it?", gold, words, rng)


def analogies(rng: Random, level: int) -> Draft:
    easy = ("opposite", "female", "baby", "past")
    middle = ("sound", "place", "home", "comparative")
    hard = ("tool", "covering", "action", "material")
    relation = rng.choice((easy, middle, hard)[level])
    pairs = [tuple(pair.split(":")) for pair in SAME_RELATION[relation].split()]
    (a, b), (c, d) = rng.sample(pairs, 2)
    if b == d:
        return analogies(rng, level)
    taken = {second for first, second in pairs if first == c}
    beside = rng.sample(sorted({word for pair in pairs for word in pair} - {a, b, c, d} - taken), 3)
    if level == 0 and relation != "opposite":
        gold = (d,)
        return Draft(
            f'"{a}" goes with "{b}". Which word goes with "{c}" in the same way?', gold, "exact", (), f"pair/{c}/{d}"
        )
    text = f'"{a}" goes with "{b}". Which of these words goes with "{c}" in the same way: {{options}}?'
    return pick(text, d, [d, *beside], rng, fact=f"pair/{c}/{d}")


def verb_forms(rng: Random, level: int) -> Draft:
    base, past, participle = rng.choice(_third(VERBS, level))
    fact = f"verb/{base}"
    if rng.random() < 0.4:
        return Draft(f'What is the past tense of the verb "{base}"?', accepted(past), "exact", (), fact)
    shown = accepted(participle)[0]
    if rng.random() < 0.6 or not shown.endswith("n"):  # "found" and "wound" are verbs of their own
        return Draft(f'What is the past participle of the verb "{base}"?', accepted(participle), "exact", (), fact)
    return Draft(f'Of which verb is "{shown}" the past participle?', (base, f"to {base}"), "exact", (), fact)


def plurals(rng: Random, level: int) -> Draft:
    rows = {0: PLURALS[18:], 1: PLURALS[:30], 2: PLURALS[28:]}[level]
    one, many = rng.choice(rows)
    fact = f"plural/{one}"
    if rng.random() < 0.5:
        return Draft(f'What is the plural of the noun "{one}"?', (many,), "exact", (), fact)
    wrong = next(form for form in (one + "s", one + "es") if form != many)
    shown = many if rng.random() < 0.5 else wrong
    text = f'Is "{shown}" the right plural of the noun "{one}"?'
    return yes_no(text, shown == many, fact=fact)


FAMILIES = {
    "translations-into": translations_into,
    "translations-from": translations_from,
    "translations-between": translations_between,
    "antonyms": antonyms,
    "odd-words": odd_words,
    "analogies": analogies,
    "verb-forms": verb_forms,
    "plurals": plurals,
}
