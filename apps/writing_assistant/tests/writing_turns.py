"""Shared by tests of the writing assistant: a turn, a model that answers in form, and one reply."""

import asyncio
from collections.abc import Callable, Mapping

from scripted import Answer, ScriptedLLM

from metaprobe.papers.systems import Models, Prompts, Session, Setup
from metaprobe_writing_assistant.system.assistant import SYSTEM, reply
from metaprobe_writing_assistant.system.contract import Profile, Reply, Turn, item_of_turn

DRAFT = "Veins look blue. The blood inside them is blue, because it has no oxygen! I read it in a book."
TOLD = Profile("16, from China", "two years of English", "academic writing", "short answers")

IN_FORM: Mapping[str, Answer] = {
    "profile": "Demographic: 17\nProficiency: beginner\nGoals: to argue\nPreferences: examples",
    "stage": "DURING",
    "topic": "veins",
    "guide": "1. One. 2. Two. 3. Three.",
    "aggregate": "Step 1: both. Step 2: none.\nInstructions: ask before you tell.",
    "words": "vein, oxygen, illusion",
    "explain": "vein: a tube for blood\noxygen: a gas, from oxy (sharp) and gen (maker)\nNow write sentences.",
    "extract": "NONE",
    "assess": "Step 1: a draft.\nStep 2: thin.\nStep 3: say why.\nScore: 2",
    "reasoning": "REASONING",
    "answer": "Blood is always red.",
    "monitor": '1. One answer.\nRemark: "the blood inside them is blue" - is this so?\nConcern: yes',
    "control": '1. Context.\nRemark: "Veins look blue" - true, by light.\n'
    'Remark: "not in the draft" - gone.\nConcern: no',
    "synthesis": "6. Tell the learner about light.",
    "respond": "Good start. Which colour has blood in a syringe?",
}
"""Answers to every stage, as they were asked for."""


def turn_with(message: str = "Is my claim right?", draft: str = DRAFT, profile: Profile = TOLD, **more: object) -> Turn:
    return Turn(profile, draft, message, **more)  # type: ignore[arg-type]


def reply_of(
    condition: str,
    turn: Turn | None = None,
    answers: Mapping[str, Answer] = IN_FORM,
    *,
    on_text: Callable[[str], None] | None = None,
    gate: object = None,
    **setup: object,
) -> tuple[Reply, ScriptedLLM, Session]:
    """One reply with what was asked for it; `setup`: further fields of `Setup`."""
    llm, turn = ScriptedLLM(answers), turn or turn_with()
    prompts = Prompts.load(SYSTEM.folder, SYSTEM.prompts)
    given = Setup(Models(llm), prompts, **setup)  # type: ignore[arg-type]
    session = Session(given, item_of_turn(turn, "t"), system=SYSTEM.name, variant=condition, run_id="r")
    found = asyncio.run(reply(session, turn, condition, on_text=on_text, gate=gate))  # type: ignore[arg-type]
    return found, llm, session
