"""Asks for the country of places of the world, some of them twice, and for the confidence in each answer.

The places are of GeoNames (`tasks/rows/demo-places-LICENSE.txt`), drawn by `scripts/demo_places.py`.
"""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path

from metaprobe.api import Call, Item, Run, parse_stated
from metaprobe.papers.systems.self_report import ANSWER_STAGE, DIRECT_TOKENS, STATEMENT_TOKENS, extract_answer
from metaprobe.papers.systems.session import Session
from metaprobe.papers.systems.system import System
from metaprobe.papers.systems.system_options import Constant
from metaprobe.papers.systems.vote_counting import most_voted
from metaprobe.papers.tasks.item_files import read_items
from metaprobe.papers.tasks.task import Row, Task

PLACES_FILE = Path(__file__).parent / "tasks" / "rows" / "demo-places.jsonl"
"""Items of both tasks. The split of an item says which task it belongs to."""
TWICE, UNSEEN = "twice", "unseen"
"""Splits of the questions that are asked twice, and of those that are kept apart; all others are asked once."""
TEMPERATURE = Constant("temperature", 0.7, "at which they are drawn", low=0, high=2)


async def ask_and_rate(session: Session) -> Run:
    """Draws an answer to the question, or two, and asks for the confidence in each of them."""

    async def ask_once(number: int) -> Call:
        answer = await session.ask(
            "direct",
            stage=ANSWER_STAGE,
            round=number,
            max_tokens=DIRECT_TOKENS,
            temperature=session.constant(TEMPERATURE),
            hidden=True,
        )
        answer_text = answer_in(session.item, answer, session.variant) or "(none)"
        statement = await session.ask(
            "confidence",
            stage="confidence",
            round=number,
            parent=answer,
            max_tokens=STATEMENT_TOKENS,
            answer=answer_text,
        )
        session.state(statement, "confidence", parse_stated("confidence", statement.text))
        return answer

    count = 2 if session.item.split == TWICE else 1
    calls = await asyncio.gather(*map(ask_once, range(1, count + 1)))
    answers = {call.id: (answer_in(session.item, call, session.variant), 1.0) for call in calls}
    return session.run(answers[most_voted(session.item, answers)][0])


def answer_in(item: Item, call: Call, variant: str) -> str:
    """Returns the answer in a call's text, by the rules of `self-report` for its prompt without statements."""
    return extract_answer(item, call, "direct")


ASKED_AGAIN = System(
    name="demo-asked-again",
    folder="self-report",
    run=ask_and_rate,
    prompts=("direct", "confidence"),
    stages=(ANSWER_STAGE, "confidence"),
    extract_answer=answer_in,
    limits={ANSWER_STAGE: DIRECT_TOKENS, "confidence": STATEMENT_TOKENS},
    constants=(TEMPERATURE,),
)


def learn_items(rows: Sequence[Row], seed: int) -> Iterator[Item]:
    """Returns the questions on which the demo compares signals, and from which it learns."""
    return (item for item in read_items(PLACES_FILE) if item.split != UNSEEN)


def unseen_items(rows: Sequence[Row], seed: int) -> Iterator[Item]:
    """Returns the questions that the demo neither fits nor chooses anything on."""
    return (item for item in read_items(PLACES_FILE) if item.split == UNSEEN)


SOURCE, LICENCE = "https://www.geonames.org", "CC BY 4.0"
PLACES_TO_LEARN = Task(name="demo-places", items=learn_items, source=SOURCE, licence=LICENCE)
UNSEEN_PLACES = Task(name="demo-places-unseen", items=unseen_items, source=SOURCE, licence=LICENCE)
