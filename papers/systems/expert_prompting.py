"""ExpertPrompting (Xu et al. 2023): the model describes the expert for a question, and then answers as that expert.

As in the paper, the identity is asked for with worked examples, and the answer without any. The directive of
`raw-critique` goes to the agent that answers.
"""

from metaprobe.api import Run, final_answer
from metaprobe.papers.systems.session import Session
from metaprobe.papers.systems.system import System
from metaprobe.papers.systems.zero_shot_cot import ANSWER_TOKENS, PLAIN, PROMPT_FOLDER, RAW_CRITIQUE, ask_answer

IDENTITY_TOKENS = 96
UNKNOWN_EXPERT = "You are an expert in the subject of the question."
"""Replaces the expert if the model describes nobody."""


async def expert_prompting(session: Session) -> Run:
    """Describes the expert, answers as the expert."""
    identity = await session.ask("expert_identity", stage="identity", max_tokens=IDENTITY_TOKENS)
    expert = identity.text.strip() or UNKNOWN_EXPERT
    answer = await ask_answer(session, "expert_answer", parent=identity, identity=expert)
    return session.run(final_answer(session.item, answer.text))


SYSTEM = System(
    name="expert-prompting",
    folder=PROMPT_FOLDER,
    run=expert_prompting,
    prompts=("expert_identity", "expert_answer", "raw_critique"),
    variants=(PLAIN, RAW_CRITIQUE),
    stages=("identity", "answer"),
    limits={"identity": IDENTITY_TOKENS, "answer": ANSWER_TOKENS},
)
