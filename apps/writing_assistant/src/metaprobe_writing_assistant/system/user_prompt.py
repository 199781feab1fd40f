"""The user prompt generator: what is known about the learner, from the form and from the first message."""

import re
from dataclasses import fields, replace

from metaprobe.records.spelling import AT_LINE
from metaprobe_writing_assistant.system.asking import Work
from metaprobe_writing_assistant.system.contract import NOT_SAID, Profile
from metaprobe_writing_assistant.system.quoting import quote_text, shorten

STAGE, AGENT = "profile", "profiler"
PROFILE_TOKENS = 96
FIELD_WORDS = 60
"""Most words of each part of a profile: the rest is not shown to a model."""


async def make_profile(work: Work) -> Profile:
    """Returns the profile with every part filled: as the learner filled it in, else from the first message.

    A model is asked only if a part is open. Parts that it does not fill become `N/A`. The learner's own parts stay.
    """
    form_profile = shorten_profile(work.turn.profile)
    open_parts = [part.name for part in fields(Profile) if not (getattr(form_profile, part.name) or "").strip()]
    if not open_parts:
        return form_profile
    form = [f"{part.name}: {getattr(form_profile, part.name) or '(open)'}" for part in fields(Profile)]
    first = next((text for role, text in work.turn.history if role == "user"), work.message)
    call = await work.ask(
        "profile",
        stage=STAGE,
        agent=AGENT,
        max_tokens=PROFILE_TOKENS,
        quoted_said=quote_text("\n".join(form), "form"),
        quoted_first=quote_text(first, "first message", work.most_words),
    )
    read_parts = read_profile(call.text)
    return replace(form_profile, **{name: read_parts.get(name, NOT_SAID) for name in open_parts})


def shorten_profile(profile: Profile) -> Profile:
    """Returns the profile with each part cut to what a model is shown."""
    cut = {part.name: getattr(profile, part.name) for part in fields(Profile)}
    return Profile(**{name: text if text is None else shorten(text, FIELD_WORDS)[0] for name, text in cut.items()})


def read_profile(text: str) -> dict[str, str]:
    """Returns the parts of a profile on lines such as `Goals: ...`, by name; the first of each counts."""
    parts: dict[str, str] = {}
    for part in fields(Profile):
        line = re.search(rf"{AT_LINE}{part.name}\W*?:[ \t*]*(\S.*)$", text, re.IGNORECASE | re.MULTILINE)
        if line:
            parts[part.name] = shorten(line[1].strip(" *"), FIELD_WORDS)[0]
    return parts
