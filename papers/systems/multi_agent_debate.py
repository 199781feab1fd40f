"""Multi-agent debate (Liang et al. 2024): two sides argue until a moderator or a judge decides.

The MetaCrit paper names Liang et al. in its tables and Du et al. in its text; this is the system of the tables. There
are at most three rounds, and decoding is greedy, as in the published code of Liang et al. The affirmative side speaks
first, the negative side objects, and both see the debate so far. The judge, one call here and two in their code, is
shown each side's last word (their code: its first). An unreadable verdict of the moderator counts as undecided. If the
judge gives no answer (their code: the debate fails), the last answers of both sides and of the moderator are put to the
vote.

The directive of `raw-critique` goes to the two sides. In the variant `panel` the panel replaces the judge: it keeps the
last answer of a side or of the moderator.
"""

import re

from metaprobe.api import Call, Run, final_answer
from metaprobe.papers.systems.metacrit import quote, yes_no
from metaprobe.papers.systems.session import PANEL, Session
from metaprobe.papers.systems.system import System
from metaprobe.papers.systems.system_options import Constant
from metaprobe.papers.systems.vote_counting import most_voted
from metaprobe.papers.systems.zero_shot_cot import PLAIN, PROMPT_FOLDER, RAW_CRITIQUE, ask_answer

DEBATE_ROUNDS = Constant("rounds", 3, "how often both sides speak at most")
SIDE_TOKENS = 192
MODERATOR_TOKENS = 96
JUDGE_TOKENS = 192
AFFIRMATIVE, NEGATIVE = "affirmative", "negative"

_ANSWERED = re.compile(r"\banswer\W{0,4}[:=]\s*\S", re.IGNORECASE)


async def multi_agent_debate(session: Session) -> Run:
    """Debates until the moderator decides; after the last round the judge decides."""
    item = session.item
    debate: list[Call] = []
    for number in range(1, session.constant(DEBATE_ROUNDS) + 1):
        affirmative = await speak(session, AFFIRMATIVE, number, debate)
        negative = await speak(session, NEGATIVE, number, [*debate, affirmative])
        debate += [affirmative, negative]
        last_words = {"affirmative": quote(affirmative), "negative": quote(negative)}
        moderator = await ask_answer(
            session,
            "debate_moderator",
            stage="moderator",
            agent="moderator",
            round=number,
            max_tokens=MODERATOR_TOKENS,
            number=number,
            **last_words,
        )
        is_decided = session.state(moderator, "decided", yes_no(moderator.text, "decided"))
        if is_decided == 1 and _ANSWERED.search(moderator.text):
            return session.run(final_answer(item, moderator.text))
    if session.variant == PANEL:
        return session.run(final_answer(item, session.keep([affirmative, negative, moderator]).text))
    judge = await ask_answer(
        session, "debate_judge", stage="judge", agent="judge", max_tokens=JUDGE_TOKENS, **last_words
    )
    has_answer = session.state(judge, "decided", 1 if _ANSWERED.search(judge.text) else None)
    if has_answer:
        return session.run(final_answer(item, judge.text))
    votes = {call.agent: (final_answer(item, call.text), 1.0) for call in (affirmative, negative, moderator)}
    return session.run(votes[most_voted(item, votes)][0])


async def speak(session: Session, side: str, number: int, debate: list[Call]) -> Call:
    """Returns one side's turn: it opens, objects, or replies to the debate so far.

    Args:
        session: the session.
        side: the side.
        number: number of the round.
        debate: the turns so far.
    """
    opening = "debate_opening" if side == AFFIRMATIVE else "debate_objection"
    transcript = "\n\n".join(f"{call.agent.capitalize()} side, round {call.round}: {quote(call)}" for call in debate)
    return await ask_answer(
        session,
        opening if number == 1 else "debate_reply",
        agent=side,
        round=number,
        parent=debate[-1] if debate else None,
        max_tokens=SIDE_TOKENS,
        side=side,
        transcript=transcript,
    )


SYSTEM = System(
    name="multi-agent-debate",
    folder=PROMPT_FOLDER,
    run=multi_agent_debate,
    prompts=(
        "debate_opening",
        "debate_objection",
        "debate_reply",
        "debate_moderator",
        "debate_judge",
        "raw_critique",
    ),
    variants=(PLAIN, RAW_CRITIQUE, PANEL),
    panel_variants=(PANEL,),
    stages=("answer", "moderator", "judge"),
    answer_stages=("answer", "moderator", "judge"),
    limits={"answer": SIDE_TOKENS, "moderator": MODERATOR_TOKENS, "judge": JUDGE_TOKENS},
    constants=(DEBATE_ROUNDS,),
)
