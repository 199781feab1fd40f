"""The first condition: one teacher, who is told the stage's prompt where there is a stage, else to give feedback."""

from metaprobe.pipelines.writing_assistant.asking import Work, quote_profile
from metaprobe.pipelines.writing_assistant.contract import Stage
from metaprobe.pipelines.writing_assistant.final_response import AGENT, RESPOND_TOKENS, OnText
from metaprobe.pipelines.writing_assistant.final_response import STAGE as RESPOND
from metaprobe.pipelines.writing_assistant.topic_module import GUIDE, stage_guide
from metaprobe.pipelines.writing_assistant.user_prompt import shorten_profile
from metaprobe.records.types import Call

META_AGENT = "meta-prompt"
META_TOKENS = 192


async def answer_alone(work: Work, stage: Stage | None, on_text: OnText | None) -> Call:
    """Returns the one call that answers the learner. The profile stands before the request as it was filled in."""
    return await work.ask(
        "single",
        stage=RESPOND,
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
