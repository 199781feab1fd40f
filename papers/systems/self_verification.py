"""Self-Verification: of several answers, it returns the one from which most of the problem can be reconstructed.

Weng et al. 2022, as Algorithm 2 and section 4.1 of the Monitor-Generate-Verify paper describe it: K = 3 candidates at
temperature 0.3 with 800 tokens each. A candidate's answer is put as a statement. Each condition of the problem in turn
is hidden as X, and the model, at temperature 0.3, has to find X from the statement. The candidate with the most
conditions found is returned.

The paper contradicts itself and leaves some points open. Here:

- Algorithm 2 returns the best verified candidate, section 4.1 speaks of majority voting. Here the best verified one is
  returned; of equals, the one that most candidates agree with, then the first.
- Candidates with the same answer are the same statement, so they are verified once and share the score. If all agree,
  there is nothing to choose, and nothing is verified.
- P, the number of verifications a condition, is left open: 1.
- A condition is a number written in digits. A problem may hold many, and each costs a call a candidate: the first 4
  count.
- The statement is made by a template, not by a model, which could change it.
- A problem without such numbers, or whose answer is no number, has no conditions to hide: the model is asked whether
  the statement is true, as Weng et al. do outside of arithmetic.
- A candidate without an answer is not verified. A reconstruction that cannot be read is not a success.
"""

import asyncio
import dataclasses
import re
from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import Any

from metaprobe.api import Call, Item, Run, Signals, canonical, final_answer
from metaprobe.papers.systems.session import Session
from metaprobe.papers.systems.system import System
from metaprobe.papers.systems.system_options import Constant

CANDIDATES = Constant("candidates", 3, "answers to choose from")
VERIFICATIONS = Constant("verifications", 1, "how often each condition is verified, the paper's P")
MOST_CONDITIONS = Constant("conditions", 4, "numbers of a problem that are hidden at most, one after another")
VERIFICATION_TEMPERATURE = Constant(
    "temperature", 0.3, "at which candidates and verifications are drawn", low=0, high=2
)
CANDIDATE_TOKENS = 800
BACKWARD_TOKENS = 400
VERIFIED = "verified"
"""Statement of a backward call: 1 if it found the hidden condition, 0 if another, None if nothing was readable."""

_NUMBER = re.compile(r"(?<![\w.,])(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\w]|[.,]\d)")
_HIDDEN = Item(id="condition", question="", check="number")
_CLAIM = Item(id="claim", question="", check="choice", choices=("true", "false"))


async def self_verification(session: Session) -> Run:
    """Draws candidates, verifies them if they differ, and returns the best verified one."""
    ask_options = {
        "max_tokens": CANDIDATE_TOKENS,
        "temperature": session.constant(VERIFICATION_TEMPERATURE),
        "hidden": True,
    }
    calls = await asyncio.gather(
        *(
            session.ask("generate", stage="answer", round=number, **dict[str, Any](ask_options))
            for number in range(session.constant(CANDIDATES))
        )
    )
    answers = [final_answer(session.item, call.text) for call in calls]
    forms = [canonical(session.item, answer) for answer in answers]
    answers_differ = len({form for form in forms if form}) > 1
    numbers = count()
    candidates = {}
    for index in distinct(forms):
        stated = None
        if answers_differ and forms[index] and session.signals.asks("quality"):
            stated = await _verified_share(session, calls[index], answers[index], numbers)
        quality = session.signal("quality", stated=stated, call=calls[index])
        candidates[str(index)] = dataclasses.replace(Signals.of(calls[index]), quality=quality)
    chosen = session.decide("select", list(candidates), candidates=candidates)
    return session.run(answers[int(chosen.action)])


def distinct(forms: Sequence[str]) -> list[int]:
    """Returns the index of the first of each different answer.

    The answer that was given most often comes first, because the policy takes the first of equals.

    All answers that cannot be read ("") count as one answer, the last.
    """
    votes = Counter(form for form in forms if form)
    return sorted({forms.index(form) for form in forms}, key=lambda index: (-votes[forms[index]], index))


async def _verified_share(session: Session, candidate: Call, answer: str, numbers: "count[int]") -> float:
    """Returns the share of the verifications that succeed (the paper's score, over the number of verifications).

    Args:
        session: the session.
        candidate: the candidate.
        answer: its answer.
        numbers: counter from which each call takes its number.
    """
    conclusion = session.messages("conclusion", answer=answer)[0].content
    masked_problems = masked_conditions(session.item, session.constant(MOST_CONDITIONS))
    tests = [("backward", {"masked": masked}, _HIDDEN, reply) for masked, reply in masked_problems]
    tests = tests or [("check", {}, _CLAIM, "true")]

    async def verify_once(prompt: str, slots: dict[str, str], answer_item: Item, expected: str) -> float:
        call = await session.ask(
            prompt,
            stage="backward",
            round=next(numbers),
            parent=candidate,
            max_tokens=BACKWARD_TOKENS,
            temperature=session.constant(VERIFICATION_TEMPERATURE),
            conclusion=conclusion,
            **dict[str, Any](slots),
        )
        reply = canonical(answer_item, final_answer(answer_item, call.text))
        is_readable = (
            reply in answer_item.choices if answer_item.choices else any(map(str.isdigit, reply))
        )  # words are no number
        return (
            session.state(call, VERIFIED, float(reply == canonical(answer_item, expected)) if is_readable else None)
            or 0.0
        )

    results = await asyncio.gather(
        *(verify_once(*test) for _ in range(session.constant(VERIFICATIONS)) for test in tests)
    )
    return sum(results) / len(results)


def masked_conditions(item: Item, max_conditions: int) -> list[tuple[str, str]]:
    """Returns pairs (problem with one number hidden as X, that number), for the first `max_conditions` numbers.

    Only problems about numbers have such pairs.
    """
    if item.check not in ("number", "none"):
        return []
    matches = list(_NUMBER.finditer(item.question))[:max_conditions]
    return [(item.question[: match.start()] + "X" + item.question[match.end() :], match.group()) for match in matches]


SYSTEM = System(
    name="self-verification",
    run=self_verification,
    prompts=("generate", "conclusion", "backward", "check"),
    variants=("paper",),
    stages=("answer", "backward"),
    signals={"quality": "answer"},
    limits={"answer": CANDIDATE_TOKENS, "backward": BACKWARD_TOKENS},
    constants=(CANDIDATES, VERIFICATIONS, MOST_CONDITIONS, VERIFICATION_TEMPERATURE),
    decides=("select",),
)
