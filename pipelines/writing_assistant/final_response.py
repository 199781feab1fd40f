"""The final response generator: one answer to the learner from all that the modules found, in three steps."""

from collections.abc import Callable, Sequence

from metaprobe.pipelines.writing_assistant.asking import Work, quote_profile
from metaprobe.pipelines.writing_assistant.contract import Card, Profile, RubricScore
from metaprobe.pipelines.writing_assistant.vocabulary import cards_text
from metaprobe.records.types import Call

STAGE, AGENT = "respond", "teacher"
RESPOND_TOKENS = 384

OnText = Callable[[str], None]


async def respond(
    work: Work,
    *,
    profile: Profile,
    topic: str | None,
    guidance: str,
    cards: Sequence[Card] = (),
    rubric: RubricScore | None = None,
    critical: str = "",
    on_text: OnText | None = None,
) -> Call:
    """Returns the call whose text the learner reads; `on_text` gets its pieces as they come."""
    return await work.ask(
        "respond",
        stage=STAGE,
        agent=AGENT,
        max_tokens=RESPOND_TOKENS,
        hidden=True,
        on_text=on_text,
        quoted_profile=quote_profile(profile),
        topic=topic or "(not named)",
        guidance=guidance,
        found=found_text(work, cards, rubric, critical),
    )


def found_text(work: Work, cards: Sequence[Card], rubric: RubricScore | None, critical: str) -> str:
    """Returns what the modules found, each part under its heading and after an empty line; empty for nothing."""
    parts = [work.text_of("found_words", text=cards_text(cards))] if cards else []
    if rubric is not None:
        parts.append(work.text_of("found_score", score=str(rubric.score), text=rubric.reasons or "(none)"))
    if critical:
        parts.append(work.text_of("found_critics", text=critical))
    return "".join(f"\n\n{part}" for part in parts)
