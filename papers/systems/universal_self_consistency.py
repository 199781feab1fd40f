"""Universal self-consistency (Chen et al. 2023): samples several answers, then the model says which agrees with most.

Eight samples and a greedy choice, as in Chen et al.; the MetaCrit paper states neither number nor temperature. The
temperature is ours. If the choice names no sample, or several, the samples' answers are put to the vote. The label
`chosen` on the returned sample has the source `choice`, `vote` or `panel`.

The variant `vote` asks for no choice, whose prompt holds every sample: plain self-consistency (Wang et al. 2022). The
variant `panel` samples one after another until the panel's own rule stops it, and returns the answer that the panel
keeps.
"""

import asyncio
import re
from collections.abc import Sequence

from metaprobe.api import Call, Run, final_answer, read_int
from metaprobe.papers.systems.metacrit import quote
from metaprobe.papers.systems.session import PANEL, Session
from metaprobe.papers.systems.system import System
from metaprobe.papers.systems.system_options import Constant
from metaprobe.papers.systems.vote_counting import most_voted
from metaprobe.papers.systems.zero_shot_cot import ANSWER_TOKENS, PLAIN, PROMPT_FOLDER, RAW_CRITIQUE, ask_answer

SAMPLE_COUNT = Constant("samples", 8, "answers to choose from")
SAMPLING_TEMPERATURE = Constant("temperature", 0.6, "at which they are drawn", low=0, high=2)
CHOICE_TOKENS = 16
VOTE = "vote"

_NAMED = (re.compile(r"\bresponse[^\w:]*+:\W*(\d+)", re.I), re.compile(r"\bresponse\W{0,4}(\d+)", re.I))
_ALONE = re.compile(r"^\W*(\d+)\W*$")


async def universal_self_consistency(session: Session) -> Run:
    """Samples answers, lets the model choose the most consistent one, or the vote in its variant, and returns it."""
    count = session.constant(SAMPLE_COUNT)
    if session.variant == PANEL:
        returned, source = await sample_until_panel_stops(session, count), PANEL
    else:
        samples = await asyncio.gather(*(draw_sample(session, number) for number in range(1, count + 1)))
        choice = None if session.variant == VOTE else await choose_most_consistent(session, samples)
        answers = {str(index): (final_answer(session.item, call.text), 1.0) for index, call in enumerate(samples)}
        returned = samples[int(most_voted(session.item, answers)) if choice is None else choice - 1]
        source = "vote" if choice is None else "choice"
    session.label(returned, "chosen", 1, source=source)
    return session.run(final_answer(session.item, returned.text))


async def draw_sample(session: Session, number: int) -> Call:
    """Returns one answer by zero-shot chain of thought, drawn at random. The round is the sample's number."""
    temperature = session.constant(SAMPLING_TEMPERATURE)
    return await ask_answer(session, "zero_shot_cot", round=number, temperature=temperature, heard="")


async def sample_until_panel_stops(session: Session, max_samples: int) -> Call:
    """Returns the answer that the panel keeps. Without a stored stopping rule, as for several agents, all are drawn."""
    panel, samples = session.panel, []
    setting = panel.plan().setting_for(session.draw_id) if panel.settings else None
    for number in range(1, max_samples + 1):
        samples.append(await draw_sample(session, number))
        if setting is not None and panel.stops(session.judge(samples), setting, number, number):
            break
    return session.keep(samples)


async def choose_most_consistent(session: Session, samples: Sequence[Call]) -> int | None:
    """Returns the number of the sample that the model says agrees with most; None if it names none or several."""
    choice = await session.ask(
        "consistency",
        stage="choice",
        max_tokens=CHOICE_TOKENS,
        count=len(samples),
        responses="\n\n".join(f"Response {number}:\n{quote(call)}" for number, call in enumerate(samples, 1)),
    )
    return chosen_number(choice.text, len(samples))


def chosen_number(text: str, count: int) -> int | None:
    """Returns the one response that the text names, from 1 to `count`; None if it names none or several."""
    for pattern in (*_NAMED, _ALONE):
        if numbers := {read_int(number) for number in pattern.findall(text)}:
            number = numbers.pop()
            return number if not numbers and 1 <= number <= count else None
    return None


SYSTEM = System(
    name="universal-self-consistency",
    folder=PROMPT_FOLDER,
    run=universal_self_consistency,
    prompts=("zero_shot_cot", "consistency", "raw_critique"),
    variants=(PLAIN, RAW_CRITIQUE, VOTE, PANEL),
    panel_variants=(PANEL,),
    stages=("answer", "choice"),
    limits={"answer": ANSWER_TOKENS, "choice": CHOICE_TOKENS},
    constants=(SAMPLE_COUNT, SAMPLING_TEMPERATURE),
)
