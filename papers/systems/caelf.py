"""CAELF: two assistants argue about an essay, a solver finds what stands, a teacher grades, the student contests.

After its appendix (Algorithm 1, tables 2-6). What the appendix leaves open is done here as follows:

- The assistants reflect once (`REFLECTIONS`); each sees all that was said before. The arguments of every round enter
  the framework ("all arguments in discussion").
- No argument is asked whether it attacks itself. An answer that is neither yes nor no is recorded as None and counts as
  no attack.
- Extensions are preferred ones. Each is a position, and an argument in several positions is written out once. If
  nothing stands, the teacher reads all arguments.
- Grades are whole levels on a line `Level: N`, which the prompts ask for; the paper's feedback has no such line. Any
  other form is no grade. They are recorded as statements `level`, scaled so that the lowest level is 0 and the highest
  1.
- The contest enters as one more argument before Algorithm 1 runs again: only pairs with it are asked, and the teacher
  sees it only if it stands. An unreadable grade stays unreadable; no earlier grade replaces it.
- The variant `levels` asks no attack question: two arguments attack each other if they state different levels, because
  one essay cannot have both. An argument without a level attacks nothing. It is for models that cannot recognise an
  attack.
- The variant `single` is one model that grades and then answers the contest in the same conversation.
- If a model is given for the stage `judge`, it rates the first feedback (`rate_feedback`), in every variant.

The arguments that stand together are the preferred extensions of an abstract argumentation framework (Dung 1995). They
are stated as a logic program, in the manner of ASPARTIX (Egly, Gaggl and Woltran 2010), and solved by clingo.

A language model rates how good feedback is for its student, on the four criteria of the paper's table 7. The paper asks
people, who rate from 1 to 5. Here a judge rates each feedback twice, with the criteria in the table's order and in the
reverse order, so that its agreement with itself can be measured. Another judge over the same runs gives the agreement
between judges. Ratings by a model are no human ratings: labels name the model as their source.
"""

import asyncio
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from metaprobe.api import AT_LINE, Call, Item, RecordError, Run, Sampling, read_int, require
from metaprobe.papers.systems.judging import JUDGE_STAGE, object_schema, only_json_object, whole_number
from metaprobe.papers.systems.session import Session
from metaprobe.papers.systems.system import System
from metaprobe.papers.systems.system_options import Constant, Need

CLINGO = "clingo>=5.8,<6"

_PREFERRED = """
    #defined attack/2.
    { in(X) } :- argument(X).
    defeated(Y) :- in(X), attack(X, Y).
    :- in(X), defeated(X).
    undefended(Y) :- attack(X, Y), not defeated(X).
    :- in(X), undefended(X).
    #heuristic in(X) : argument(X). [1, true]
    #show in/1.
"""
"""The admissible sets. With `domRec`, clingo gives only those that are largest by inclusion."""


def extensions(arguments: int, attacks: Collection[tuple[int, int]]) -> tuple[frozenset[int], ...]:
    """Returns the sets of arguments that can be held together, in order of their members.

    There is at least one set, which may be empty. Raises `ValueError` for an attack on or by an unknown argument, and
    `MissingExtra` without clingo.

    Args:
        arguments: number of arguments; they are 0 to `arguments` - 1.
        attacks: pairs (attacker, attacked).
    """
    if unknown_arguments := sorted({a for pair in attacks for a in pair} - set(range(arguments))):
        raise ValueError(f"attacks name the arguments {unknown_arguments}; expected numbers from 0 to {arguments - 1}")
    clingo = require("clingo", CLINGO)
    facts = [f"argument({i})." for i in range(arguments)] + [f"attack({i}, {k})." for i, k in attacks]
    control = clingo.Control(["--models=0", "--heuristic=Domain", "--enum-mode=domRec"])
    control.add("base", [], _PREFERRED + "".join(facts))
    control.ground([("base", [])])
    with control.solve(yield_=True) as models:
        sets = [frozenset(atom.arguments[0].number for atom in model.symbols(shown=True)) for model in models]
    return tuple(sorted(sets, key=sorted))


CRITERIA = ("readability", "factuality", "self_regulation", "future_improvement")
MIN_RATING, MAX_RATING = 1, 5
REVERSED_ORDER = ":reversed"
"""Suffix of the source of the ratings that were asked for in the reverse order."""
RATING_TOKENS = 64


async def rate_feedback(session: Session, feedback: Call, *, rubric: str) -> None:
    """Asks the judge, if there is one, for both ratings of one feedback, and labels each criterion from 1 to 5.

    A rating that cannot be read is missing; it is not asked for again.

    Args:
        session: the session.
        feedback: the feedback.
        rubric: the rubric.
    """
    if JUDGE_STAGE not in session.setup.models.by_name:
        return
    grade = {"type": "integer", "enum": list(range(MIN_RATING, MAX_RATING + 1))}
    for round_number, criteria in enumerate((CRITERIA, CRITERIA[::-1])):
        texts = [session.messages(f"rate_{criterion}")[0].content for criterion in criteria]
        messages = session.messages(
            "rate",
            feedback=feedback.text.strip(),
            rubric=rubric,
            criteria="\n\n".join(texts),
            names=", ".join(criteria),
        )
        call = await session.send(
            messages,
            Sampling(max_tokens=RATING_TOKENS, json_schema=object_schema(dict.fromkeys(criteria, grade))),
            stage=JUDGE_STAGE,
            agent=f"rater-{feedback.round}",
            round=round_number,
            parent=feedback,
        )
        for name, value in parse_rating(call.text).items():
            session.label(
                feedback, name, value, source=f"{JUDGE_STAGE}:{call.model}" + (REVERSED_ORDER if round_number else "")
            )


def parse_rating(text: str) -> dict[str, int]:
    """Maps all four criteria to grades from 1 to 5; empty if one is missing or is no whole number in range."""
    rating = only_json_object(text) or {}
    grades = {
        name: grade
        for name in CRITERIA
        if (grade := whole_number(rating.get(name), MIN_RATING, MAX_RATING)) is not None
    }
    return grades if len(grades) == len(CRITERIA) else {}


ASSISTANTS = {"kind": ("Sarah", "strengths"), "strict": ("Mike", "weaknesses")}
"""Maps an agent to its name in the discussion, and its first prompt; its persona is the prompt with the
agent's name.
"""
TRAITS = ("issue", "evidence", "position", "conclusion")
REFLECTIONS = Constant("reflections", 1, "how often each assistant speaks again, seeing what was said", low=0)
STUDENT_ARGUMENT_TOKENS = 192
"""Limit with room for 100 words and the level."""
TUTOR_FEEDBACK_TOKENS = 288
"""Limit with room for the level and 150 words."""
ATTACK_TOKENS = 4
BY_LEVEL = "levels"

_NO_RANGE = r"(?!\s*(?:[.,/–-]|or|to|and)\s*\d)"
_LEVEL = re.compile(rf"{AT_LINE}level\W*?(?::[\s*_`]*(\d+)\b{_NO_RANGE}|\s(\d+)\W*$)", re.IGNORECASE | re.MULTILINE)
_YES_NO = re.compile(r"\W*(yes|no)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Scale:
    """The levels that an essay can get, and what they mean."""

    rubric: str
    low: int
    high: int

    def state(self, session: Session, call: Call) -> int | None:
        """Returns the level that an answer states, or None; notes it as a number in [0, 1]."""
        level = read_level(call.text, self.low, self.high)
        session.state(call, "level", None if level is None else (level - self.low) / (self.high - self.low))
        return level

    @property
    def slots(self) -> dict[str, Any]:
        return {"rubric": self.rubric, "low": self.low, "high": self.high}


@dataclass(frozen=True, slots=True)
class Argument:
    """One side's argument."""

    speaker: str
    call: Call

    @property
    def text(self) -> str:
        return self.call.text.strip()


async def caelf(session: Session) -> Run:
    """Discusses, finds what stands and grades; hears the contest, finds what stands now, and grades again."""
    scale = _scale_of(session)
    if session.variant == "single":
        return await _run_single(session, scale)
    arguments = await _discussion(session, scale)
    attacks = await _attacks(session, scale, arguments, known_count=0)
    feedback = await _teacher(session, scale, arguments, attacks)
    await rate_feedback(session, feedback, rubric=scale.rubric)
    grade = scale.state(session, feedback)
    if session.variant == "no-contest":
        return session.run(_level_text(grade))
    contest = await _contest(session, scale, feedback, grade)
    arguments.append(Argument("Student", contest))
    attacks |= await _attacks(session, scale, arguments, known_count=len(arguments) - 1)
    feedback = await _teacher(session, scale, arguments, attacks, contest=contest)
    return session.run(_level_text(scale.state(session, feedback)))


async def _discussion(session: Session, scale: Scale) -> list[Argument]:
    """Returns the arguments: strengths and weaknesses first, so that the sides differ, then each side's reflections."""
    arguments: list[Argument] = []
    personas = {agent: session.messages(agent)[0].content for agent in ASSISTANTS}
    latest: dict[str, Call] = {}
    for round_number in range(1 + session.constant(REFLECTIONS)):
        memory = "\n\n".join(f"{argument.speaker}: {argument.text}" for argument in arguments)
        calls = await asyncio.gather(
            *(
                session.ask(
                    opening if round_number == 0 else "reflect",
                    stage="argue" if round_number == 0 else "reflect",
                    agent=agent,
                    round=round_number,
                    parent=latest.get(agent),
                    max_tokens=STUDENT_ARGUMENT_TOKENS,
                    system_prompt=personas[agent],
                    memory=memory,
                    **scale.slots,
                )
                for agent, (_, opening) in ASSISTANTS.items()
            )
        )
        for (agent, (speaker, _)), call in zip(ASSISTANTS.items(), calls, strict=True):
            scale.state(session, call)
            arguments.append(Argument(speaker, call))
            latest[agent] = call
    return arguments


async def _attacks(
    session: Session, scale: Scale, arguments: Sequence[Argument], *, known_count: int
) -> set[tuple[int, int]]:
    """Returns the attacks (Algorithm 1) among the pairs that include an argument beyond the first `known_count`.

    Args:
        session: the session.
        scale: the levels.
        arguments: the arguments.
        known_count: number of arguments whose pairs were already asked.
    """
    n = len(arguments)
    pairs = [(i, k) for i in range(n) for k in range(n) if i != k and max(i, k) >= known_count]
    if session.variant == BY_LEVEL:
        levels = [read_level(argument.call.text, scale.low, scale.high) for argument in arguments]
        return {(i, k) for i, k in pairs if None not in (levels[i], levels[k]) and levels[i] != levels[k]}
    calls = await asyncio.gather(
        *(
            session.ask(
                "attack",
                stage="attack",
                agent="teacher",
                round=number,  # the pairs asked before come first, so every pair has its own number
                parent=arguments[i].call,
                max_tokens=ATTACK_TOKENS,
                argument_1=arguments[i].text,
                argument_2=arguments[k].text,
            )
            for number, (i, k) in enumerate(pairs, start=max(known_count * (known_count - 1), 0))
        )
    )
    return {
        pair for pair, call in zip(pairs, calls, strict=True) if session.state(call, "attack", yes_or_no(call.text))
    }


async def _teacher(
    session: Session,
    scale: Scale,
    arguments: Sequence[Argument],
    attacks: set[tuple[int, int]],
    *,
    contest: Call | None = None,
) -> Call:
    """Returns the teacher's level and feedback for the positions that stand; the solver's result is noted as labels.

    Args:
        session: the session.
        scale: the levels.
        arguments: the arguments.
        attacks: the attacks.
        contest: the contest, if there is one.
    """
    standing_sets = extensions(len(arguments), attacks)
    feedback = await session.ask(
        "teacher",
        stage="answer",
        agent="teacher",
        round=0 if contest is None else 1,
        parent=contest,
        max_tokens=TUTOR_FEEDBACK_TOKENS,
        hidden=True,
        positions=positions(arguments, standing_sets),
        **scale.slots,
    )
    sizes = [len(extension) for extension in standing_sets]
    standing = {number for extension in standing_sets for number in extension}
    solved: dict[str, float] = {
        "arguments": len(arguments),
        "attacks": len(attacks),
        "extensions": len(standing_sets),
        "extension_size": sum(sizes) / len(sizes) if sizes else 0,
        "standing": len(standing),
    }
    if contest is not None:
        solved["contest_stands"] = float(len(arguments) - 1 in standing)  # it came last
    for name, value in solved.items():
        session.label(feedback, name, value, source="solver")
    return feedback


async def _contest(session: Session, scale: Scale, feedback: Call, grade: int | None) -> Call:
    """Returns the simulated user's contest of a grade. It must ask for another level; whether it does is recorded.

    Args:
        session: the session.
        scale: the levels.
        feedback: the contested feedback.
        grade: its level.
    """
    contest = await session.ask(
        "contest",
        stage="contest",
        agent="user",
        parent=feedback,
        max_tokens=STUDENT_ARGUMENT_TOKENS,
        feedback=feedback.text.strip(),
        others=" or ".join(str(level) for level in range(scale.low, scale.high + 1) if level != grade),
        **scale.slots,
    )
    scale.state(session, contest)
    return contest


async def _run_single(session: Session, scale: Scale) -> Run:
    """Runs the baseline: one model grades, hears the same kind of contest, and answers it."""
    feedback = await session.ask(
        "single", stage="answer", agent="teacher", max_tokens=TUTOR_FEEDBACK_TOKENS, hidden=True, **scale.slots
    )
    await rate_feedback(session, feedback, rubric=scale.rubric)
    contest = await _contest(session, scale, feedback, scale.state(session, feedback))
    second_feedback = await session.ask(
        "single_contest",
        stage="answer",
        agent="teacher",
        round=1,
        parent=contest,
        max_tokens=TUTOR_FEEDBACK_TOKENS,
        hidden=True,
        feedback=feedback.text.strip(),
        contest=contest.text.strip(),
        **scale.slots,
    )
    return session.run(_level_text(scale.state(session, second_feedback)))


def positions(arguments: Sequence[Argument], standing_sets: Sequence[frozenset[int]]) -> str:
    """Returns the well-reasoned positions as the teacher reads them: an extension each, each argument
    written out once.
    """
    standing = [sorted(extension) for extension in standing_sets if extension]
    texts = [f"Position {number}:" for number in range(1, len(standing) + 1)]
    if not standing:
        standing = [list(range(len(arguments)))]
        texts = ["No argument stands against all others. Everything that was said:"]
    written: set[int] = set()
    for number, members in enumerate(standing):
        for i in members:
            name = f"Argument {i + 1} ({arguments[i].speaker})"
            texts[number] += f"\n{name}, as above" if i in written else f"\n{name}: {arguments[i].text}"
            written.add(i)
    return "\n\n".join(texts)


def read_level(text: str, low: int, high: int) -> int | None:
    """Returns the level on a line `Level: N`; None if there is none, if several differ, or if it is not a
    valid level.

    Args:
        text: the answer.
        low: lowest level.
        high: highest level.
    """
    levels = {read_int(colon or alone) for colon, alone in _LEVEL.findall(text)}
    return levels.pop() if len(levels) == 1 and levels <= set(range(low, high + 1)) else None


def yes_or_no(text: str) -> float | None:
    """Returns 1 for an answer that begins with yes, 0 for no, None for anything else."""
    answer = _YES_NO.match(text)
    return None if answer is None else float(answer[1].lower() == "yes")


def extract_level(item: Item, call: Call, variant: str) -> str:
    """Returns the level that an answer states, as text; empty if it states none.

    Args:
        item: the item.
        call: the answer.
        variant: the variant.
    """
    return _level_text(read_level(call.text, *_bounds(item)))


def _level_text(level: int | None) -> str:
    return "" if level is None else str(level)


def _bounds(item: Item) -> tuple[int, int]:
    low, high = item.fields.get("low", "0"), item.fields.get("high", "2")
    try:
        bounds = int(low), int(high)
    except ValueError:
        bounds = 0, 0
    if bounds[0] >= bounds[1]:
        raise RecordError(
            f"item {item.id!r} has levels from {low!r} to {high!r}: expected whole numbers, such as 0 to 2"
        )
    return bounds


def _scale_of(session: Session) -> Scale:
    """Returns the item's own rubric, or that of CAELF for its trait."""
    item = session.item
    rubric, trait = item.fields.get("rubric", "").strip(), item.fields.get("trait", "").lower()
    if "essay" not in item.fields or not trait:
        raise RecordError(f"item {item.id!r} has the fields {sorted(item.fields)}: caelf needs `essay` and `trait`")
    if not rubric:
        if trait not in TRAITS or _bounds(item) != (0, 2):
            raise RecordError(
                f"item {item.id!r} has no `rubric`, and caelf has its own only for levels 0 to 2 of {', '.join(TRAITS)}"
            )
        rubric = session.messages(f"rubric_{trait}")[0].content
    return Scale(rubric, *_bounds(item))


SYSTEM = System(
    name="caelf",
    run=caelf,
    prompts=(
        *ASSISTANTS,
        *("strengths", "weaknesses", "reflect", "attack", "teacher", "contest", "single", "single_contest"),
        *(f"rubric_{trait}" for trait in TRAITS),
        *("rate", *(f"rate_{criterion}" for criterion in CRITERIA)),
    ),
    variants=("caelf", BY_LEVEL, "no-contest", "single"),
    default_variants=("caelf", "single"),
    stages=("argue", "reflect", "attack", "answer", "contest", JUDGE_STAGE),
    roles=(*ASSISTANTS, "teacher", "user"),
    fields=("essay", "trait"),
    extract_answer=extract_level,
    limits={
        "argue": STUDENT_ARGUMENT_TOKENS,
        "reflect": STUDENT_ARGUMENT_TOKENS,
        "attack": ATTACK_TOKENS,
        "answer": TUTOR_FEEDBACK_TOKENS,
        "contest": STUDENT_ARGUMENT_TOKENS,
        JUDGE_STAGE: RATING_TOKENS,
    },
    constants=(REFLECTIONS,),
    without={"single": (REFLECTIONS.name,)},
    needs=(Need("clingo", CLINGO, without=("single",)),),
)
