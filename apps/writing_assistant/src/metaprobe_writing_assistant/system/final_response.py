"""The final response: by one teacher alone, or by the generator that reads the results of all modules, in
three steps.
"""

from collections.abc import Callable

from metaprobe.records.types import Call
from metaprobe_writing_assistant.system.asking import Work, quote_profile
from metaprobe_writing_assistant.system.contract import Reply, Stage
from metaprobe_writing_assistant.system.topic_module import GUIDE, stage_guide
from metaprobe_writing_assistant.system.user_prompt import shorten_profile
from metaprobe_writing_assistant.system.vocabulary import cards_text

STAGE, AGENT = "respond", "teacher"
RESPOND_TOKENS = 384
META_AGENT = "meta-prompt"
META_TOKENS = 192

OnText = Callable[[str], None]


async def answer_alone(work: Work, stage: Stage | None, on_text: OnText | None) -> Call:
    """Returns the one call that answers the learner. The profile goes before the request as it was filled in.

    Args:
        work: the turn.
        stage: the stage.
        on_text: called with each piece of the answer.
    """
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
    """Returns a prompt that the model makes for the stage, or the general one if there is no stage."""
    if stage is None:
        return work.text_of("feedback")
    stage_text = stage_guide(work, stage)
    guidance_call = await work.ask(
        "guide_stage", stage=GUIDE, agent=META_AGENT, max_tokens=META_TOKENS, stage_guide=stage_text
    )
    return guidance_call.text.strip() or stage_text


async def respond(
    work: Work, unfinished: Reply, *, guidance: str, critical: str = "", on_text: OnText | None = None
) -> Call:
    """Returns the call whose text the learner reads.

    Args:
        work: the turn.
        unfinished: the reply so far, with the modules' results. They are shown part by part, each under its heading and
            after an empty line.
        guidance: instructions for the response.
        critical: words of the critics.
        on_text: called with each piece of the response as it comes.
    """
    parts = [work.text_of("found_words", text=cards_text(unfinished.cards))] if unfinished.cards else []
    if (rubric := unfinished.rubric) is not None:
        parts.append(work.text_of("found_score", score=str(rubric.score), text=rubric.reasons or "(none)"))
    if critical:
        parts.append(work.text_of("found_critics", text=critical))
    return await work.ask(
        "respond",
        stage=STAGE,
        agent=AGENT,
        max_tokens=RESPOND_TOKENS,
        hidden=True,
        on_text=on_text,
        quoted_profile=quote_profile(unfinished.profile),
        topic=unfinished.topic or "(not named)",
        guidance=guidance,
        found="".join(f"\n\n{part}" for part in parts),
    )
