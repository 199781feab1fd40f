"""How the families are asked: two ways of one call each."""

from pathlib import Path

from metaprobe.pipelines import Prompts, Session, System
from metaprobe.records.answers import final_answer
from metaprobe.records.correctness import SENTENCE_END
from metaprobe.records.types import Call, Item, Run

DIRECT, WORKED = "direct", "worked"
LIMITS = {DIRECT: 64, WORKED: 160}
PROMPTS = Path(__file__).parent / "prompts"


async def ask_once(session: Session) -> Run:
    """Ask the item's question in the way that the variant names, and take the answer."""
    variant = session.variant
    call = await session.ask(variant, stage="answer", max_tokens=LIMITS[variant], hidden=True)
    return session.run(answer_of(session.item, call, variant))


def answer_of(item: Item, call: Call, variant: str) -> str:
    """The answer within a call's text: its first line when asked directly, else what follows "Answer:".

    A worked answer without that mark is its last sentence. Of a direct one, a line is passed over that opens a code
    block or only announces the answer ("The line prints:").
    """
    if variant == DIRECT:
        lines = [line.strip() for line in call.text.splitlines() if line.strip(" `")]
        lines = [line for line in lines if not line.startswith("```")]
        announced = len(lines) > 1 and lines[0].endswith(":")
        return lines[announced] if lines else ""
    final = final_answer(item, call.text)
    return final if "answer" in call.text.casefold() else SENTENCE_END.split(final.strip())[-1]


def prompts_of(system: System) -> Prompts:
    """The prompts of a system of this folder, read from its files."""
    return Prompts({name: (PROMPTS / f"{name}.txt").read_text(encoding="utf-8") for name in system.prompts})


ONCE = System(
    name="breadth",
    run=ask_once,
    prompts=(DIRECT, WORKED),
    variants=(DIRECT, WORKED),
    default_variants=(DIRECT, WORKED),
    stages=("answer",),
    extract_answer=answer_of,
    limits={"answer": max(LIMITS.values())},
)
