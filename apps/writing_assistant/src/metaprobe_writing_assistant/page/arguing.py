"""CAELF on the page: an essay is graded, the learner contests the grade, and sees which attacks changed it.

Both gradings are ordinary runs of the system `caelf`. The first is its variant without a contest. The second is the
whole system again: everything that was said the first time is repeated word for word, and the learner replaces the
simulated user.
"""

from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, replace

from metaprobe.llms.base import LLM, Request, Token, WrappedLLM
from metaprobe.papers.systems.caelf import TRAITS, caelf, extensions, read_level, yes_or_no
from metaprobe.papers.systems.session import Models, Session, Setup
from metaprobe.records.errors import RecordError
from metaprobe.records.types import Call, Item, Run
from metaprobe_writing_assistant.page.answering import OnStage, reporting_models

ARGUMENT_STAGES = ("argue", "reflect", "contest")
"""Stages whose calls are arguments, in the order in which they enter the framework."""
LOWEST_LEVEL, HIGHEST_LEVEL = 0, 2
LEARNER, LEARNER_MODEL = "user", "the learner"
SPEAKERS = {"kind": "Sarah", "strict": "Mike", LEARNER: "You"}
NO_CONTEST, CONTESTED = "no-contest", "caelf"
MAX_CONTEST_CHARS = 4000
"""Most characters of a contest."""


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One argument."""

    speaker: str
    text: str
    level: int | None
    """The level that it asks for, if it can be read."""
    standing: bool
    """Whether it is in an extension, so that the teacher reads it."""


@dataclass(frozen=True, slots=True)
class Grading:
    """Holds the result of one pass."""

    level: int | None
    feedback: str
    nodes: tuple[GraphNode, ...]
    attacks: tuple[tuple[int, int], ...]
    """Pairs (attacker, attacked) of the nodes' numbers."""


@dataclass(frozen=True, slots=True)
class Contest:
    """A first grading, the learner's contest, and the second grading."""

    before: Grading
    after: Grading
    changed: tuple[int, ...]
    """Numbers of the first arguments that stand in one grading and not in the other."""
    deciding: tuple[tuple[int, int], ...]
    """New attacks without which, one at a time, other arguments would stand."""
    stands: bool
    """Whether the learner's own argument stands."""


class RepeatingLLM(WrappedLLM):
    """A model that repeats its answers from an earlier run, and is asked only for new ones.

    The learner's argument is given to it: it is the answer at the stage `contest`.
    """

    def __init__(self, llm: LLM, earlier_calls: Sequence[Call], contest: str) -> None:
        super().__init__(llm)
        self._earlier_calls = {(call.stage, call.agent, call.round, call.messages): call for call in earlier_calls}
        self._contest = contest

    async def complete(self, request: Request) -> Call:
        """Returns the earlier call, or the learner's words, or a new call."""
        if request.stage == "contest":
            return request.call(model=LEARNER_MODEL, text=self._contest)
        earlier_call = self._earlier_calls.get((request.stage, request.agent, request.round, request.messages))
        if earlier_call is not None:
            return replace(earlier_call, id=request.id, parent=request.parent)
        return await super().complete(request)

    async def stream(self, request: Request) -> AsyncIterator[Token | Call]:
        """Yields only the finished call."""
        yield await self.complete(request)


async def grade_essay(setup: Setup, essay: str, trait: str, *, run_id: str, on_stage: OnStage) -> Run:
    """Returns the run that grades an essay on one trait.

    Raises `RecordError` for an empty essay or an unknown trait, and `LLMError` if the model cannot answer.

    Args:
        setup: the setup.
        essay: the essay.
        trait: the trait.
        run_id: id of the run.
        on_stage: called with every stage.
    """
    if not essay.strip():
        raise RecordError("there is no essay to grade yet")
    if trait not in TRAITS:
        raise RecordError(f"trait {trait!r}: expected one of {', '.join(TRAITS)}")
    item = Item(id=run_id, question="", group=run_id, fields={"essay": essay, "trait": trait})
    models, _ = reporting_models(setup.models, on_stage)
    session = Session(replace(setup, models=models), item, system="caelf", variant=NO_CONTEST, run_id=run_id)
    return await caelf(session)


async def contest_grade(setup: Setup, first: Run, text: str, level: int | None, *, on_stage: OnStage) -> Contest:
    """Returns what a contest changes.

    Args:
        setup: the setup.
        first: the run of the first grading.
        text: the contest.
        level: the level that the learner asks for, or None.
        on_stage: called with every stage.
    """
    objection = text.strip()
    if not objection:
        raise RecordError("write what you object to first")
    if len(objection) > MAX_CONTEST_CHARS:
        raise RecordError(f"the objection has {len(objection)} characters; say it in {MAX_CONTEST_CHARS} or fewer")
    if level is not None and not LOWEST_LEVEL <= level <= HIGHEST_LEVEL:
        raise RecordError(f"level {level}: expected {LOWEST_LEVEL} to {HIGHEST_LEVEL}")
    if level is not None and read_level(objection, LOWEST_LEVEL, HIGHEST_LEVEL) is None:
        objection = f"{objection}\nLevel: {level}"
    reporting, _ = reporting_models(setup.models, on_stage)
    names = {**reporting.by_name, LEARNER: reporting.of("contest", LEARNER)}
    repeating_models = Models(
        RepeatingLLM(reporting.default, first.calls, objection),
        {name: RepeatingLLM(llm, first.calls, objection) for name, llm in names.items()},
    )
    run_id = f"{first.id}-contested"
    item = replace(first.item, id=run_id)
    session = Session(replace(setup, models=repeating_models), item, system="caelf", variant=CONTESTED, run_id=run_id)
    before, after = grading_of(first), grading_of(await caelf(session))
    node_count = len(after.nodes)
    new_attacks = [pair for pair in after.attacks if node_count - 1 in pair]
    standing = _standing_numbers(node_count, after.attacks)
    deciding = [pair for pair in new_attacks if _standing_numbers(node_count, {*after.attacks} - {pair}) != standing]
    return Contest(
        before=before,
        after=after,
        changed=tuple(i for i, node in enumerate(before.nodes) if node.standing != after.nodes[i].standing),
        deciding=tuple(deciding),
        stands=after.nodes[-1].standing,
    )


def grading_of(run: Run) -> Grading:
    """Returns grade, feedback, arguments and attacks of a run of `caelf`."""
    arguments = [call for stage in ARGUMENT_STAGES for call in run.calls if call.stage == stage]
    answers = [call for call in run.calls if call.stage == "answer"]
    if not answers or not arguments:
        raise RecordError(f"run {run.id} holds no grading of caelf")
    attacks = _attacks(run, len(arguments), contested=any(call.stage == "contest" for call in arguments))
    standing = _standing_numbers(len(arguments), attacks)
    nodes = (
        GraphNode(
            SPEAKERS.get(call.agent, call.agent),
            call.text.strip(),
            read_level(call.text, LOWEST_LEVEL, HIGHEST_LEVEL),
            i in standing,
        )
        for i, call in enumerate(arguments)
    )
    last = answers[-1]
    return Grading(
        read_level(last.text, LOWEST_LEVEL, HIGHEST_LEVEL), last.text.strip(), tuple(nodes), tuple(sorted(attacks))
    )


def _attacks(run: Run, n: int, *, contested: bool) -> set[tuple[int, int]]:
    """Returns the pairs whose question was answered yes; `caelf` numbers the questions, those of the contest last.

    Args:
        run: the run.
        n: number of arguments.
        contested: whether the last argument is a contest.
    """
    earlier_count = n - 1 if contested else n
    pairs = [(i, k) for i in range(earlier_count) for k in range(earlier_count) if i != k]
    pairs += [(i, k) for i in range(n) for k in range(n) if i != k and max(i, k) >= earlier_count]
    answer_of_question = {call.round: call.text for call in run.calls if call.stage == "attack"}
    return {
        pair
        for number, pair in enumerate(pairs)
        if number in answer_of_question and yes_or_no(answer_of_question[number]) == 1
    }


def _standing_numbers(n: int, attacks: Collection[tuple[int, int]]) -> set[int]:
    return {number for extension in extensions(n, attacks) for number in extension}
