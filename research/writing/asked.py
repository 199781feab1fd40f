"""Parts of the writing assistant as systems of their own, so that they are measured without the rest.

metaprobe collect research.writing.asked:CLASSIFIERS --task writing-turns --llm L --out RUNS
metaprobe collect research.writing.asked:ASSESSOR --task research.writing.asked:SPOILT --llm L --out RUNS
"""

import asyncio
from collections.abc import Iterator, Sequence

from metaprobe.pipelines.session import Session
from metaprobe.pipelines.system import System
from metaprobe.pipelines.writing_assistant import reasoning_check as reasoning
from metaprobe.pipelines.writing_assistant import stage_classifier as stages
from metaprobe.pipelines.writing_assistant import writing_assessor as assessor
from metaprobe.pipelines.writing_assistant.asking import Work
from metaprobe.pipelines.writing_assistant.assistant import SYSTEM, extract_answer
from metaprobe.pipelines.writing_assistant.contract import Profile, Turn, item_of_turn, turn_of_item
from metaprobe.records.types import Item, Run
from metaprobe.tasks.task import Row, Task
from research.writing.cases import FILM_FIRST, VEINS_FIRST
from research.writing.injections import HARMLESS, INJECTIONS

ESSAYS = {"film": FILM_FIRST, "veins": VEINS_FIRST}
"""Short and weak drafts: there is room above their score, and a little below."""
REQUEST = "Please assess my text."
TOLD = Profile("16 years old", "second year of English", "to write better", "short answers")


async def classify(session: Session) -> Run:
    """Ask for the stage and for the reasoning check, and for nothing else."""
    work = Work(session, turn_of_item(session.item), [])
    (_, stage), _ = await asyncio.gather(stages.ask_stage(work), reasoning.ask_reasoning(work))
    return session.run(stage.text.strip())


async def assess(session: Session) -> Run:
    """Ask for the score of the draft, and for nothing else."""
    work = Work(session, turn_of_item(session.item), [])
    found = await assessor.assess(work, work.turn.draft, work.turn.profile)
    return session.run("" if found is None else str(found.score))


def spoilt(rows: Sequence[Row], seed: int) -> Iterator[Item]:
    """Each essay as it is, with every order in its middle, and with every harmless sentence there."""
    for name, essay in ESSAYS.items():
        kinds = [("clean", "", "")]
        kinds += [(one.kind, one.text, str(one.score)) for one in INJECTIONS]
        kinds += [("harmless", text, "") for text in HARMLESS]
        for number, (kind, text, wanted) in enumerate(kinds):
            half = essay.index(". ") + 1
            draft = f"{essay[:half]} {text}{essay[half:]}" if text else essay
            yield item_of_turn(
                Turn(TOLD, draft, REQUEST),
                f"{name}-{number}",
                group=name,
                dimension=kind,
                level=name,
                fields={"wanted": wanted},
            )


CLASSIFIERS = System(
    name="writing-classifiers",
    folder=SYSTEM.folder,
    run=classify,
    prompts=SYSTEM.prompts,
    stages=(stages.STAGE, reasoning.STAGE),
    answer_stages=(stages.STAGE,),
    extract_answer=extract_answer,
    limits={stages.STAGE: stages.STAGE_TOKENS, reasoning.STAGE: reasoning.REASONING_TOKENS},
    calls=lambda setup, variant: {stages.STAGE: 2, reasoning.STAGE: 2},
    constants=SYSTEM.constants[:1],
)
ASSESSOR = System(
    name="writing-assessor",
    folder=SYSTEM.folder,
    run=assess,
    prompts=SYSTEM.prompts,
    stages=(assessor.STAGE,),
    answer_stages=(assessor.STAGE,),
    extract_answer=extract_answer,
    limits={assessor.STAGE: assessor.ASSESS_TOKENS},
    calls=lambda setup, variant: {assessor.STAGE: 2},
    constants=SYSTEM.constants[:1],
)
SPOILT = Task(name="writing-spoilt", items=spoilt, source="made here", licence="Apache-2.0")
