"""Monitor-Generate-Verify: assesses a problem, solves it with fitting means, evaluates the solution, perhaps repeats.

Oh 2025, "Before you <think>, monitor", Algorithm 1 and section 3. One cycle: the monitor names features and difficulty,
a strategy is chosen, the executor solves with a budget that grows with the difficulty, the verifier gives four scores.
From the second cycle on, the monitor sees the last four scores, and the executor sees the whole last cycle (section 3.2
and A.2; the algorithm's own line leaves that out).

What the paper leaves open is done as follows. The monitor's prompt ties difficulty to the number of steps (otherwise a
small model says 0.5 for everything). Monitor, strategy and verifier are greedy, the first two with short limits. A mean
is over the scores that were given. A strategy outside the list is used as it was written. If a checkpoint replaces the
verifier, the next cycle sees the last attempt but no scores. The run stops at a mean >= 0.85 (Algorithm 1, section
3.3), though section 4.1 says that the mean must exceed it.
"""

import dataclasses
import re
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from metaprobe.api import (
    Action,
    Call,
    Run,
    Signal,
    Signals,
    final_answer,
    find_choices,
    parse_stated,
    words,
)
from metaprobe.papers.systems.session import Session
from metaprobe.papers.systems.system import System
from metaprobe.papers.systems.system_options import Constant

VERIFIER_SCORES = ("coherence", "plausibility", "consistency", "goal_conduciveness")
"""The verifier's four scores, each stated under its name."""
STRATEGY_KNOWN = "strategy_known"
"""Statement about a strategy call: 1 if it named one strategy of the list, 0 if something else, None if nothing."""
NEUTRAL_STRATEGY = "step by step reasoning"
"""Replaces a strategy that was not named, also in the prompt on which a probe reads the difficulty in advance."""

ASSESSMENT_TOKENS = 100
STRATEGY_TOKENS = 32
VERIFY_TOKENS = 300
SOLVE_TOKENS = 800
"""The highest value of the paper's budget, at difficulty 1."""
MAX_CYCLES = Constant("most_cycles", 10, "cycles after which it stops, also where a policy never does")
"""The paper's own three cycles are the policy's."""

_NAMES = {name: name.replace("_conduciveness", r"[-_ ]?conduc\w*") for name in VERIFIER_SCORES}
_MAX_ASIDE_CHARS = 200
"""Most characters between a name and its value. Without a limit every name would be searched to the end of its line."""
_SCORE = re.compile(
    rf"\b({'|'.join(_NAMES.values())})\b(?:[\s*_]*\([^)\n]{{0,{_MAX_ASIDE_CHARS}}}\))?[\s*_]*[:=]\s*([^\n]*)",
    re.IGNORECASE,
)
_EVALUATION = re.compile(r"\bevaluation[*_]*\s*:\s*(.*)", re.IGNORECASE | re.DOTALL)
_END = rf"<|\bdifficulty\b[^:\n]{{0,{_MAX_ASIDE_CHARS}}}:|\Z"
_FEATURES = re.compile(rf"task[ _]features?[*_]*[ \t]*:[*_\s]*(.*?)(?=\n|{_END})(?:\s*+(?={_END}))?", re.IGNORECASE)
_SELECTED = re.compile(r"(?:selected )?strategy[*_]*\s*:\s*([^\n]+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class AnswerEvaluation:
    """The verifier's evaluation of a solution."""

    scores: dict[str, float | None]
    """Scores by name; None if a score was not given or cannot be read."""
    evaluation: str

    @property
    def mean(self) -> float | None:
        """Mean over the scores that were given; None without any."""
        scores = [score for score in self.scores.values() if score is not None]
        return fmean(scores) if scores else None

    @property
    def score_texts(self) -> dict[str, str]:
        """The scores as the next cycle reads them."""
        return {name: "not given" if score is None else f"{score:.2f}" for name, score in self.scores.items()}


@dataclass(frozen=True, slots=True)
class Cycle:
    """One pass of monitor, generate and verify."""

    difficulty: Signal | None
    features: str
    strategy: str
    answer: Call
    verdict: AnswerEvaluation | None
    """The verifier's evaluation; None if it was not asked."""
    quality: Signal | None

    @property
    def signals(self) -> Signals:
        return dataclasses.replace(Signals.of(self.answer), difficulty=self.difficulty, quality=self.quality)


async def monitor_generate_verify(session: Session) -> Run:
    """Runs cycles until the policy stops, and returns the best-evaluated answer."""
    cycles: list[Cycle] = []
    max_cycles = session.constant(MAX_CYCLES)
    for number in range(max_cycles):
        previous = cycles[-1] if cycles else None
        features, difficulty = await _monitor(session, number, previous)
        strategy = await _choose_strategy(session, number, features, difficulty)
        answer = await _execute(session, number, previous, strategy, difficulty)
        verdict = await _verify(session, number, answer) if session.signals.asks("quality") else None
        quality = session.signal("quality", stated=verdict.mean if verdict else None, call=answer)
        cycles.append(Cycle(difficulty, features, strategy, answer, verdict, quality))
        candidates = {str(number): cycle.signals for number, cycle in enumerate(cycles)}
        state = {"candidates": candidates, "round": number + 1}
        legal = [Action.STOP, Action.AGAIN] if number + 1 < max_cycles else [Action.STOP]
        if session.decide("iterate", legal, signals=cycles[-1].signals, **state).action == Action.STOP:
            break
    chosen = session.decide("select", list(candidates), **state)
    return session.run(final_answer(session.item, cycles[int(chosen.action)].answer.text))


async def _monitor(session: Session, number: int, previous: Cycle | None) -> tuple[str, Signal | None]:
    """Returns the features, and the difficulty: stated, or read from the executor's prompt.

    Args:
        session: the session.
        number: number of the cycle.
        previous: the last cycle.
    """
    prompt, score_texts = (
        ("monitor_again", previous.verdict.score_texts) if previous and previous.verdict else ("monitor", {})
    )
    call = await session.ask(
        prompt,
        stage="monitor",
        round=number,
        max_tokens=ASSESSMENT_TOKENS,
        stop=["</monitor>"],
        **dict[str, Any](score_texts),
    )
    features, stated_numbers = parse_monitor(call.text)
    session.state(call, "difficulty", stated_numbers)
    read_call = None
    if session.signals.reads("difficulty") == "prompt":
        prompt, slots = _solve_prompt(previous, NEUTRAL_STRATEGY)
        read_call = await session.read(session.messages(prompt, **slots), round=number, model_of="answer")
    return features, session.signal("difficulty", stated=stated_numbers, call=read_call)


async def _choose_strategy(session: Session, number: int, features: str, difficulty: Signal | None) -> str:
    """Returns one of the strategies.

    Args:
        session: the session.
        number: number of the cycle.
        features: the features.
        difficulty: the difficulty.
    """
    strategies = session.setup.prompts.entries("strategies")
    call = await session.ask(
        "strategy",
        stage="strategy",
        round=number,
        max_tokens=STRATEGY_TOKENS,
        task_features=features or "not given",
        difficulty=_difficulty(difficulty),
        strategies=", ".join(strategies),
    )
    strategy, in_list = parse_strategy(call.text, strategies)
    session.state(call, STRATEGY_KNOWN, in_list)
    return strategy


async def _execute(
    session: Session, number: int, previous: Cycle | None, strategy: str, difficulty: Signal | None
) -> Call:
    """Returns the solution, with the budget that the difficulty calls for.

    Args:
        session: the session.
        number: number of the cycle.
        previous: the last cycle.
        strategy: the strategy.
        difficulty: the difficulty.
    """
    budget = session.decide("budget", [Action.GENERATE], signals=Signals(difficulty=difficulty), round=number).scores
    prompt, slots = _solve_prompt(previous, strategy)
    return await session.ask(
        prompt,
        stage="answer",
        round=number,
        parent=previous.answer if previous else None,
        max_tokens=round(budget["max_tokens"]),
        temperature=budget["temperature"],
        stop=["</answer>"],
        hidden=True,
        **slots,
    )


async def _verify(session: Session, number: int, answer: Call) -> AnswerEvaluation:
    """Returns four scores and the text behind them.

    Args:
        session: the session.
        number: number of the cycle.
        answer: the solution.
    """
    call = await session.ask(
        "verify",
        stage="verify",
        round=number,
        parent=answer,
        max_tokens=VERIFY_TOKENS,
        stop=["</evaluate>"],
        solution=answer.text.strip(),
    )
    verdict = parse_verdict(call.text)
    for name, score in verdict.scores.items():
        session.state(call, name, score)
    return verdict


def _solve_prompt(previous: Cycle | None, strategy: str) -> tuple[str, dict[str, Any]]:
    """Returns the executor's prompt and its slots.

    The prompt is for the first attempt, after an evaluated attempt, or after an attempt that no verifier saw.
    """
    if previous is None:
        return "execute", {"strategy": strategy}
    slots = {
        "strategy": strategy,
        "previous_difficulty": _difficulty(previous.difficulty),
        "previous_features": previous.features or "not given",
        "previous_strategy": previous.strategy,
        "previous_reasoning": previous.answer.text.strip(),
    }
    if previous.verdict is None:
        return "execute_unevaluated", slots
    return "execute_again", {**slots, **previous.verdict.score_texts, "evaluation": previous.verdict.evaluation}


def parse_monitor(text: str) -> tuple[str, float | None]:
    """Returns the features as written, and the difficulty in [0, 1]."""
    block = _block(text, "monitor")
    features = _FEATURES.search(block)
    # The features are removed first, because they may mention the difficulty too.
    return features[1].strip() if features else "", parse_stated("difficulty", _FEATURES.sub("", block), scale=1)


def parse_strategy(text: str, strategies: tuple[str, ...]) -> tuple[str, float | None]:
    """Returns the strategy that a text names, and whether it is in the list: see `STRATEGY_KNOWN`."""
    selected = _SELECTED.search(text)
    lines = [line for line in (selected[1] if selected else text).splitlines() if words(line)]
    if not lines:
        return NEUTRAL_STRATEGY, None
    named_words = words(lines[0])
    exact = [strategy for strategy in strategies if words(strategy) == named_words]
    matches = exact or find_choices(named_words, {strategy: words(strategy) for strategy in strategies})
    return (matches[0], 1.0) if len(matches) == 1 else (lines[0].strip(" \t[]*\"'`."), 0.0)


def parse_verdict(text: str) -> AnswerEvaluation:
    """Returns the four scores and the text behind them. A score is None if none in [0, 1] or two different ones were
    given.
    """
    block = _block(text, "evaluate")
    evaluation = _EVALUATION.search(block)
    by_name: dict[str, set[float | None]] = {name: set() for name in VERIFIER_SCORES}
    for written_name, value in _SCORE.findall(block[: evaluation.start()] if evaluation else block):
        name = next(name for name in VERIFIER_SCORES if name.startswith(written_name[:4].lower()))
        by_name[name].add(parse_stated("confidence", f"confidence: {value}", scale=1))
    scores = {name: values.pop() if len(values) == 1 else None for name, values in by_name.items()}
    return AnswerEvaluation(scores, evaluation[1].strip() if evaluation else "")


def _block(text: str, tag: str) -> str:
    """Returns the text between a tag's opening and closing, either of which may be missing."""
    _, opened, after_tag = text.rpartition(f"<{tag}>")
    return (after_tag if opened else text).partition(f"</{tag}>")[0]


def _difficulty(signal: Signal | None) -> str:
    return "not given" if signal is None else f"{signal.value:.3f}"


SYSTEM = System(
    name="monitor-generate-verify",
    run=monitor_generate_verify,
    prompts=(
        "monitor",
        "monitor_again",
        "strategy",
        "strategies",
        "execute",
        "execute_again",
        "execute_unevaluated",
        "verify",
    ),
    variants=("paper",),
    stages=("monitor", "strategy", "answer", "verify"),
    signals={"difficulty": "answer", "quality": "answer"},
    limits={
        "monitor": ASSESSMENT_TOKENS,
        "strategy": STRATEGY_TOKENS,
        "answer": SOLVE_TOKENS,
        "verify": VERIFY_TOKENS,
    },
    constants=(MAX_CYCLES,),
    uses=("difficulty",),  # the strategy's prompt shows it
    decides=("budget", "iterate", "select"),
)
