"""The final response: by one teacher alone, or by the generator that reads what all modules found, in three steps."""

from collections.abc import Callable, Sequence

from metaprobe.records.types import Call
from metaprobe_writing_assistant.system.asking import Work, quote_profile
from metaprobe_writing_assistant.system.contract import Card, Profile, RubricScore, Stage
from metaprobe_writing_assistant.system.topic_module import GUIDE, stage_guide
from metaprobe_writing_assistant.system.user_prompt import shorten_profile
from metaprobe_writing_assistant.system.vocabulary import cards_text

STAGE, AGENT = "respond", "teacher"
RESPOND_TOKENS = 384
META_AGENT = "meta-prompt"
META_TOKENS = 192

OnText = Callable[[str], None]


async def answer_alone(work: Work, stage: Stage | None, on_text: OnText | None) -> Call:
    """Returns the one call that answers the learner. The profile stands before the request as it was filled in."""
    return await work.ask(
        "single",
        stage=STAGE,
        agent=AGENT,
        max_tokens=RESPOND_TOKENS,
        hidden=True,
        on_text=on_text,
        guidance=await _guidance(work, stage),
        quoted_profile=quote_profile(shorten_profile(work.turn.profile)),
    )


async def _guidance(work: Work, stage: Stage | None) -> str:
    """A prompt that the model makes for the stage, or the general one where there is no stage."""
    if stage is None:
        return work.text_of("feedback")
    for_stage = stage_guide(work, stage)
    made = await work.ask("guide_stage", stage=GUIDE, agent=META_AGENT, max_tokens=META_TOKENS, stage_guide=for_stage)
    return made.text.strip() or for_stage


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
