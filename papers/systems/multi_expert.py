"""Multi-expert prompting (Long et al. 2024): three experts answer, and one call joins their answers in seven steps.

Five calls: name the experts, three answers, join. The MetaCrit paper counts these five as agents in table 4 ("1+5") and
speaks of one call in table 8; the published code of Long et al. makes five calls. Three experts, as there. An expert
that the first call does not name readably is replaced by a general one; the statement `experts` holds the share that it
did name.

The variants `monitor` and `control` show the joining call the words of one more agent: MetaCrit's monitor of the
question, asked at the same time as the experts, or its critic of the experts' answers. The paper does not say where
these are put in. The directive of `raw-critique` goes to the experts and to the joining call. In the variant `panel` no
call joins the answers: the panel keeps one of them.
"""

import asyncio
import re

from metaprobe.api import AT_LINE, Call, Run, final_answer
from metaprobe.papers.systems.metacrit import CONTROL_TOKENS, MONITOR_TOKENS, heard, monitor, quote, yes_no
from metaprobe.papers.systems.session import PANEL, Session
from metaprobe.papers.systems.system import System
from metaprobe.papers.systems.system_options import Constant
from metaprobe.papers.systems.zero_shot_cot import (
    PLAIN,
    PROMPT_FOLDER,
    RAW_CRITIQUE,
    WITH_CONTROL,
    WITH_MONITOR,
    ask_answer,
)

EXPERTS = Constant("experts", 3, "how many answer")
NAMING_TOKENS = 128
EXPERT_TOKENS = 192
MERGE_TOKENS = 320
ANY_EXPERT = "a person who knows the subject of the question well"

_LISTED = re.compile(rf"{AT_LINE}\d+\s*[.):]\s*(\S(?:.*\S)?)\s*$", re.MULTILINE)


async def multi_expert(session: Session) -> Run:
    """Names experts, lets each answer, hears the monitor or the critic if the variant has one, joins the answers."""
    count = session.constant(EXPERTS)
    naming = await session.ask("experts", stage="experts", max_tokens=NAMING_TOKENS, count=count)
    experts = read_experts(naming.text, count)
    session.state(naming, "experts", len(experts) / count if experts else None)
    experts += [ANY_EXPERT] * (count - len(experts))

    answer_tasks = asyncio.gather(
        *(
            ask_answer(session, "multi_expert_answer", agent=f"expert{number}", max_tokens=EXPERT_TOKENS, expert=expert)
            for number, expert in enumerate(experts, 1)
        )
    )
    if session.variant == WITH_MONITOR:
        answers, note = await asyncio.gather(answer_tasks, monitor(session))
    else:
        answers, note = await answer_tasks, None
    if session.variant == PANEL:
        return session.run(final_answer(session.item, session.keep(answers).text))
    expert_answers = "\n\n".join(
        f"{expert_name}:\n{quote(call)}" for expert_name, call in zip(experts, answers, strict=True)
    )
    critique = await criticise_experts(session, expert_answers) if session.variant == WITH_CONTROL else None
    merged = await ask_answer(
        session,
        "multi_expert_merge",
        stage="merge",
        max_tokens=MERGE_TOKENS,
        count=count,
        answers=expert_answers,
        heard=heard(session, note, critique),
    )
    return session.run(final_answer(session.item, merged.text))


async def criticise_experts(session: Session, answers: str) -> Call:
    """Asks MetaCrit's critic as a drop-in: it sees the question and what the experts said."""
    critique = await session.ask("control", stage="control", agent="control", max_tokens=CONTROL_TOKENS, answer=answers)
    session.state(critique, "flags", yes_no(critique.text, "concern"))
    return critique


def read_experts(text: str, count: int) -> list[str]:
    """Returns the first experts of a numbered list, at most `count`, each once."""
    return list(dict.fromkeys(_LISTED.findall(text)))[:count]


SYSTEM = System(
    name="multi-expert",
    folder=PROMPT_FOLDER,
    run=multi_expert,
    prompts=(
        "experts",
        "multi_expert_answer",
        "multi_expert_merge",
        "raw_critique",
        "monitor",
        "control",
        "heard_monitor",
        "heard_control",
    ),
    variants=(PLAIN, RAW_CRITIQUE, WITH_MONITOR, WITH_CONTROL, PANEL),
    panel_variants=(PANEL,),
    stages=("experts", "answer", "monitor", "control", "merge"),
    answer_stages=("answer", "merge"),
    limits={
        "experts": NAMING_TOKENS,
        "answer": EXPERT_TOKENS,
        "monitor": MONITOR_TOKENS,
        "control": CONTROL_TOKENS,
        "merge": MERGE_TOKENS,
    },
    constants=(EXPERTS,),
)
