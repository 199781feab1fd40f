"""Parts of the writing assistant as systems of their own, so that they are measured without the rest.

metaprobe collect research.writing.asked:CLASSIFIERS --task writing-turns --llm L --out RUNS
metaprobe collect research.writing.asked:ASSESSOR --task research.writing.asked:SPOILT --llm L --out RUNS
"""

import asyncio
from collections.abc import Iterator, Sequence

from metaprobe.papers.systems.session import Session
from metaprobe.papers.systems.system import System
from metaprobe.papers.tasks import load_task
from metaprobe.papers.tasks.task import Row, Task
from metaprobe.records.types import Item, Run
from metaprobe_writing_assistant.system import classifiers
from metaprobe_writing_assistant.system import writing_assessor as assessor
from metaprobe_writing_assistant.system.asking import Work
from metaprobe_writing_assistant.system.assistant import SYSTEM
from metaprobe_writing_assistant.system.contract import Profile, Turn, item_of_turn, turn_of_item
from research.writing.injections import HARMLESS, INJECTIONS

CASES = {item.id: item for item in load_task("writing-cases")}
ESSAYS = {name: CASES[f"writing-cases/{at}"].fields["draft"] for name, at in (("film", "2-3"), ("veins", "3-3"))}
"""Short and weak drafts: there is room above their score, and a little below."""
REQUEST = "Please assess my text."
TOLD = Profile("16 years old", "second year of English", "to write better", "short answers")


async def classify(session: Session) -> Run:
    """Ask for the stage and for the reasoning check, and for nothing else."""
    work = Work(session, turn_of_item(session.item), [])
    await asyncio.gather(classifiers.find_stage(work), classifiers.find_reasoning(work))
    return session.run(work.module_answers[classifiers.STAGE][0].text.strip())


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
    stages=(classifiers.STAGE, classifiers.REASONING),
    answer_stages=(classifiers.STAGE,),
    extract_answer=SYSTEM.extract_answer,
    limits={classifiers.STAGE: classifiers.STAGE_TOKENS, classifiers.REASONING: classifiers.REASONING_TOKENS},
    constants=SYSTEM.constants[:1],
)
ASSESSOR = System(
    name="writing-assessor",
    folder=SYSTEM.folder,
    run=assess,
    prompts=SYSTEM.prompts,
    stages=(assessor.STAGE,),
    answer_stages=(assessor.STAGE,),
    extract_answer=SYSTEM.extract_answer,
    limits={assessor.STAGE: assessor.ASSESS_TOKENS},
    constants=SYSTEM.constants[:1],
)
SPOILT = Task(name="writing-spoilt", items=spoilt, source="made here", licence="Apache-2.0")
