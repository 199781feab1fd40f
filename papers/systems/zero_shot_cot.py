"""Zero-shot chain of thought (Kojima et al. 2023): one call that thinks step by step. A baseline of the MetaCrit paper.

Kojima's second call, which extracts the answer, is replaced by a last line "Answer:" (table 8 counts one call).
Variants, as for the other baselines: `raw-critique` adds the directive of section 5.2 to the question. `monitor` and
`control` add one agent of MetaCrit (table 4, "1+1": two calls in all; the paper does not say how they are joined):

- `monitor` assesses the question first, as in figures 7 and 22, and its note is shown to the agent that answers;
- `control` criticises the answer, as in figure 8, and ends with its own answer, which is the final one.
"""

from typing import Any

from metaprobe.api import Call, Run, final_answer
from metaprobe.papers.systems.metacrit import (
    CONTROL_TOKENS,
    MONITOR_TOKENS,
    answer_form,
    heard,
    monitor,
    quote,
    yes_no,
)
from metaprobe.papers.systems.session import Session
from metaprobe.papers.systems.system import System

ANSWER_TOKENS = 256
PROMPT_FOLDER = "baselines"

PLAIN, RAW_CRITIQUE, WITH_MONITOR, WITH_CONTROL = "plain", "raw-critique", "monitor", "control"


async def zero_shot_cot(session: Session) -> Run:
    """Answers step by step; before it asks the monitor, or after it the critic, if the variant has one."""
    note = await monitor(session) if session.variant == WITH_MONITOR else None
    answer = await ask_answer(session, "zero_shot_cot", heard=heard(session, note, None))
    if session.variant == WITH_CONTROL:
        answer = await session.ask(
            "control_answer",
            stage="control",
            agent="control",
            parent=answer,
            max_tokens=CONTROL_TOKENS,
            hidden=True,
            answer=quote(answer),
            form=answer_form(session.item),
        )
        session.state(answer, "flags", yes_no(answer.text, "concern"))
    return session.run(final_answer(session.item, answer.text))


async def ask_answer(
    session: Session, prompt: str, *, stage: str = "answer", max_tokens: int = ANSWER_TOKENS, **slots: Any
) -> Call:
    """Asks as `session.ask` does for an answer that ends with its form, under the directive of the variant.

    Args:
        session: the session.
        prompt: name of the prompt.
        stage: the stage.
        max_tokens: most tokens of the answer.
        **more: other arguments of `session.ask`.
    """
    slots |= {"directive": directive(session), "form": answer_form(session.item)}
    return await session.ask(prompt, stage=stage, max_tokens=max_tokens, hidden=True, **slots)


def directive(session: Session) -> str:
    """Returns the raw-critique directive as it follows the question; empty in the other variants."""
    return "\n" + session.messages("raw_critique")[0].content if session.variant == RAW_CRITIQUE else ""


SYSTEM = System(
    name="zero-shot-cot",
    folder=PROMPT_FOLDER,
    run=zero_shot_cot,
    prompts=("zero_shot_cot", "raw_critique", "monitor", "heard_monitor", "heard_control", "control_answer"),
    variants=(PLAIN, RAW_CRITIQUE, WITH_MONITOR, WITH_CONTROL),
    stages=("answer", "monitor", "control"),
    answer_stages=("answer", "control"),
    limits={"answer": ANSWER_TOKENS, "monitor": MONITOR_TOKENS, "control": CONTROL_TOKENS},
)
