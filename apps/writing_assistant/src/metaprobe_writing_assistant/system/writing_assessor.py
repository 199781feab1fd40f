"""The writing extractor and the writing assessor.

The extractor separates the learner's own text from the request about it. The assessor judges that text in three steps
and gives a score from 0 to 5, by a rubric after ETS's in our own words.
"""

import re

from metaprobe.papers.systems.judging import whole_number
from metaprobe.records.spelling import AT_LINE, line_matches, read_int
from metaprobe_writing_assistant.system.asking import Work, quote_profile
from metaprobe_writing_assistant.system.contract import Profile, RubricScore
from metaprobe_writing_assistant.system.quoting import looks_foreign, quote_text

EXTRACT, EXTRACT_AGENT, EXTRACT_TOKENS = "extract", "extractor", 512
MIN_WORDS_TO_JUDGE = 25
"""Fewest words of a message that may hold a text worth a score. A shorter message holds only a request."""

STAGE, AGENT = "assess", "assessor"
ASSESS_TOKENS = 320
MIN_SCORE, MAX_SCORE = 0, 5
SCORE_STATEMENT = "rubric"
"""Name of the statement that holds the score, scaled so that 0 is 0 and 5 is 1."""

_NONE = re.compile(r"\W*(none|nothing|not appl\w*|n/a)\W*", re.IGNORECASE)
_SCORE = re.compile(r"^\W*score\W*?[:=][\s*_`]*(\d+)(?:\s*(?:/\s*5|out of (?:5|five)))?+[\s.*_`]*+$", re.IGNORECASE)
_STEP = re.compile(rf"{AT_LINE}step\s*([123])\b\W*", re.IGNORECASE | re.MULTILINE)


async def extract_writing(work: Work) -> str:
    """Returns the text to be judged: the editor's, or else the text in the message; empty if there is neither.

    A model is asked only if the editor is empty. Its extract counts only if the message has it word for word, so that
    it cannot add a text of its own; otherwise the whole message is the text, and a note says so.
    """
    if work.turn.draft.strip():
        return work.turn.draft.strip()
    if len(work.message.split()) < MIN_WORDS_TO_JUDGE:
        return ""
    call = await work.ask("extract", stage=EXTRACT, agent=EXTRACT_AGENT, max_tokens=EXTRACT_TOKENS)
    extracted = call.text.strip().strip('"').strip()
    if not extracted or _NONE.fullmatch(extracted):
        return ""
    if plain(extracted) in plain(work.message):
        return extracted
    work.note("The text could not be told from the request in your message, so all of the message was judged.")
    return work.message


async def assess(work: Work, writing: str, profile: Profile) -> RubricScore | None:
    """Returns the assessment of a text; None if the model gives no score, even if it is asked for that alone.

    Args:
        work: the turn.
        writing: the text.
        profile: the profile.
    """
    if looks_foreign(writing):
        work.note("The text does not look like English; the scale gives 0 for a text in another language.")
    call = await work.ask(
        "assess",
        stage=STAGE,
        agent=AGENT,
        max_tokens=ASSESS_TOKENS,
        hidden=True,
        quoted_profile=quote_profile(profile),
        quoted_writing=quote_text(writing, "text to judge", work.most_words),
    )
    score = read_score(call.text)
    if score is None:
        answer_in_form = await work.ask_in_form(call, "score", range(MIN_SCORE, MAX_SCORE + 1))
        score = int(answer_in_form) if answer_in_form else None
    work.session.state(call, SCORE_STATEMENT, None if score is None else (score - MIN_SCORE) / (MAX_SCORE - MIN_SCORE))
    if score is None:
        work.note("The model gave no score that could be read.")
        return None
    steps = read_steps(call.text)
    return RubricScore(score, steps[-1] if steps else _without_score(call.text), steps)


def read_score(text: str) -> int | None:
    """Returns the score on the last line of a text; None if that line holds none, or one outside the scale.

    Scores on other lines do not count: a model that copies an order out of the text does so before it judges.
    """
    lines = text.strip().splitlines()
    score_match = _SCORE.match(lines[-1]) if lines else None
    return None if score_match is None else whole_number(read_int(score_match[1]), MIN_SCORE, MAX_SCORE)


def read_steps(text: str) -> tuple[str, ...]:
    """Returns the texts of steps 1, 2 and 3; empty unless the text has each of them once, in this order."""
    text = _without_score(text)
    steps = list(line_matches(_STEP, text))
    if [step_match[1] for _, step_match in steps] != ["1", "2", "3"]:
        return ()
    ends = [*(start for start, _ in steps[1:]), len(text)]
    return tuple(text[step_match.end() : end].strip() for (_, step_match), end in zip(steps, ends, strict=True))


def _without_score(text: str) -> str:
    return "\n".join(line for line in text.strip().splitlines() if not _SCORE.match(line)).strip()


def plain(text: str) -> str:
    """Returns a text in small letters with single blanks and without quotation marks, for comparison."""
    return " ".join(re.sub(r"[\"'\u2018\u2019\u201c\u201d*]", "", text).lower().split())
