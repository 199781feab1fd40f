"""Judges several answers to one question: which to keep, how sure, and whom to ask next.

Needs NumPy and ONNX Runtime only. What is read of the answers, and the models' rows, is in `routing.panel.model_rows`;
how they are fitted in `training.recipes.panel`.
"""

import json
import math
import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from numbers import Real
from operator import mul
from typing import Self

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Checkpoint, ContractMismatch, Pretrained, load_checkpoint
from metaprobe.checkpoints.checkpoint import GraphSession, check_kind
from metaprobe.llms.pricing import Price
from metaprobe.probes.training_runs import mismatch
from metaprobe.records.errors import InvalidResponse, RecordError
from metaprobe.records.reading import without_surrogates
from metaprobe.records.types import Item
from metaprobe.routing.panel.budget import BudgetController
from metaprobe.routing.panel.compared_answers import (
    COMPARABLE_CHECKS,
    MOST_TEXT,
    MOST_TEXT_TOGETHER,
    MOST_TOGETHER,
    MOST_TOLD,
    NO_TEXTS,
    OVERLAP,
    PanelAnswer,
    PanelClass,
    PanelStep,
    PanelVerdict,
    answer_of,
    comparable_form,
    compared_by,
    names_shown,
    number_classes,
    overlapping,
    responses_in,
    shown,
    signals_in,
    told,
    untold,
    whole,
)
from metaprobe.routing.panel.model_rows import (
    ANSWER_SIGNALS,
    EMPTY_STATE,
    JOINT,
    MAJORITY,
    NORMAL_SCORES,
    PANEL_STATE,
    PICKS,
    QUANTILE_COUNT,
    SCORE,
    STATED,
    AgentProfiles,
    Answers,
    Classes,
    Floats,
    answer_columns,
    answer_rows,
    class_columns,
    class_rows,
    pick,
    state_rows,
)
from metaprobe.routing.panel.planner import (
    ASK_STATE,
    ASKED_ON,
    GAIN_MARGIN,
    PRICED,
    STOPS,
    AskPlan,
    Asks,
    AskSetting,
    Plan,
    QuestionProgress,
    Seen,
    Setting,
    ask_rows_of,
    chance_of,
    draw_of,
    kept_by,
    next_agent,
    plan_of,
    read_asks,
)
from metaprobe.routing.panel.planner import GAIN as ASK_BY_GAIN
from metaprobe.routing.panel.planner import WORDS as ASK_BY_WORDS
from metaprobe.routing.panel.sources import (
    FROM_LOGPROBS,
    describe_mismatch,
    read_left_out,
    read_sources,
    signal_kind,
    source_for,
    with_learned_confidence,
)

PANEL_KIND = "panel"
PriceOf = float | Price
"""US dollars for one answer, or a price by tokens."""
INPUT, PROBABILITY = "classes", "probability"
ODDS_GRAPH, GAIN_GRAPH, AGENTS = "answers.onnx", "gain.onnx", "agents.json"
ODDS_INPUT, ODDS = "answers", "odds"
GAIN_INPUT, GAIN_OUTPUT = "state", "gain"
WORDS_FILE = "words.f32"
TOOL_CALLS = "tool_calls"
"""Key of the contract: whether the panel learned from answers with tool calls."""
PROBABILITY_SLACK = 1e-5
"""How far rounding may move a probability out of [0, 1]."""
FAR = 1024.0
"""Normal score at which a signal's weight is measured, by evaluating the answers' graph there. It is large, so that
rounding to float32 matters little.
"""
MOST_OPTIONS = 128
NEAR_PRICE = 0.01
"""Largest relative change of an agent's price since training with which the stored curves still count."""
MAX_STOP_SETTINGS = 1000
"""Most settings of a way to stop that a checkpoint may store. A trainer writes a few."""


@dataclass(frozen=True, slots=True, eq=False)
class _Read:
    """One answer as it was read. `form` is None if it cannot be compared with the other answers."""

    text: str
    form: Hashable | None
    signals: Sequence[float]
    agent: str
    note: str = ""
    """Why this answer counts against all others."""
    doubt: str = ""
    """Doubt about an answer that is compared."""
    calls: bool = False
    """Whether it is a tool call."""
    left_out: str = ""
    """Why the confidence that came with the answer is not read."""


@dataclass(frozen=True, slots=True, eq=False)
class _JudgedAnswers:
    """Holds the numbers that the models give for the answers to one question."""

    read: Sequence[_Read]
    named: Sequence[str]
    """Name of the agent of each answer."""
    agents: list[int]
    """Column of the agent of each of the k answers."""
    odds: list[float]
    """Log-odds, for each of the k answers, that the answer by itself is right."""
    probability: list[float]
    """P(right) of each of the c classes, and last the probability that none is right."""
    kept: int
    """Class that is kept; -1 for none."""
    state: NDArray[np.float32]
    """The panel's state (1, len(PANEL_STATE))."""
    members: Mapping[int, list[int]]
    """Maps a class to the indices of its answers."""

    def surest(self, number: int) -> int:
        """Returns the place of the surest answer of a class."""
        return max(self.members[number], key=self.odds.__getitem__)

    @property
    def place(self) -> int | None:
        """The place of the answer to keep; None where none is kept."""
        return self.surest(self.kept) if self.kept >= 0 else None


class PanelJudge(Pretrained):
    """Judges several answers to one question, and names whom to ask next. Several threads may share it."""

    least_gain = GAIN_MARGIN
    """Least gain in P(right), less the price, for which another agent is asked."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Raises `ContractMismatch` for a checkpoint of another kind, or whose parts do not fit each other."""
        manifest = checkpoint.manifest
        check_kind(checkpoint.path, manifest.kind, PANEL_KIND)
        self.checkpoint = checkpoint
        self._weights = lru_cache(maxsize=4096)(self._read_weights)
        try:
            contract = manifest.contract
            self.agents = read_agents(checkpoint.extra[AGENTS])
            self.same, self.exclusive, self.pick = contract["same"], contract["exclusive"], contract["pick"]
            self.most = contract["most_answers"]
            self.score_by = str(contract.get("score_by", ""))
            self.sources = read_sources(contract)
            self.left_out = read_left_out(contract)
            self._gives = np.isfinite(self.agents.levels[:, :, 0]).tolist()
            """(A + 1, S): whether each agent gave each signal in training, and last whether any did."""
            kinds = {name: signal_kind(name) for name in self.agents.signals}
            self._lacks = [
                {*kinds.values()} - {kinds[name] for name, gave in zip(kinds, gives, strict=True) if gave}
                for gives in self._gives
            ]
            """For each agent, the kinds of signals that others gave in training and the agent never did."""
            self.knows_calls = bool(contract.get(TOOL_CALLS, False))
            self.settings = tuple(Setting(*setting) for setting in contract["stops"][: MAX_STOP_SETTINGS + 1])
            if self.pick not in PICKS or self.same not in (*COMPARABLE_CHECKS, "none", OVERLAP):
                raise ValueError(f"the pick is {self.pick!r}, and answers are the same by {self.same!r}")
            if contract.get("texts") != compared_by(self.same):
                compared = contract.get("texts", "the way of an earlier version")
                raise ValueError(f"it compares answers by {compared}, and this version by {compared_by(self.same)}")
            if type(self.exclusive) is not bool or type(self.most) is not int or self.most < 1:
                raise ValueError(f"exclusive is {self.exclusive!r}, and most_answers {self.most!r}")
            if tuple(contract["columns"]) != class_columns(self.agents):
                raise ValueError("the columns are of another version")
            if len(self.settings) > MAX_STOP_SETTINGS or not all(map(_is_whole, self.settings)):
                raise ValueError("a way to stop is not known")
            one_agent = len(self.agents.names) == 1
            if not one_agent and self.settings:
                raise ValueError("ways to stop are stored of several agents")
            self.asks = None
            if (stored := contract.get("asks")) is not None:
                width = len(self.agents.names), len(self.agents.dimensions)
                self.asks = read_asks(stored, checkpoint.extra[WORDS_FILE], *width)
            by_gain = any(setting.way == ASKED_ON for setting in self.settings)
            if self.asks is not None:
                by_gain |= ASK_BY_GAIN in self.asks.curves.settings
            if GAIN_GRAPH not in checkpoint.extra and by_gain:
                raise ValueError("something goes by a gain, and none is stored")
            columns = len(PANEL_STATE) if one_agent else len(ASK_STATE)
            self._models = {*self.agents.names, *(manifest.generator.models if manifest.generator else ())} - {""}
            self._odds = _graph(checkpoint, ODDS_GRAPH, ODDS_INPUT, len(answer_columns(self.agents)), ODDS)
            self._gain = (
                _graph(checkpoint, GAIN_GRAPH, GAIN_INPUT, columns, GAIN_OUTPUT)
                if GAIN_GRAPH in checkpoint.extra
                else None
            )
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError, RecursionError) as error:
            raise ContractMismatch(
                f"{checkpoint.path} is no whole panel ({error!r}); train it again with `metaprobe train panel`"
            ) from error

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, sha256: str | None = None) -> Self:
        """Returns the panel in a checkpoint folder, verified. `sha256`: the digest that its author gave you."""
        return cls(load_checkpoint(path, sha256=sha256))

    def judge(
        self,
        responses: object,
        *,
        agents: Sequence[str | None] | None = None,
        dimension: str | None = "",
        question: str | None = "",
        choices: Sequence[str] | None = (),
        same: Callable[[str], Hashable | None] | None = None,
        needs_call: bool = False,
    ) -> PanelVerdict:
        """Returns which answer to keep, and how sure it is. The content of an answer never raises an error; the
        verdict's reason names what is wrong with it.

        `responses`: a sequence of responses in any format of `parse_response`, of texts or of `PanelAnswer`; or one
        response with several choices. `agents`: who gave each, by default the model that the response names.
        `dimension`, `question`, `choices`: of the question, where they are known; options are read by them.
        `same`: returns a form in which equal answers are equal, None for no answer; by default as in training.
        `needs_call`: whether the request required a tool call, so that an answer in words counts against all others.
        Raises `RecordError` where there is no response, more than `MOST_TOGETHER`, another number of agents, or what
        is said of the question is no text.
        """
        response_list = responses_in(responses)
        if not response_list:
            raise RecordError("no response came; expected at least one answer to judge")
        if len(response_list) > MOST_TOGETHER:
            raise RecordError(
                f"more than {MOST_TOGETHER} answers to one question came; expected those of one question alone: in a "
                "file, does each line name its question_id?"
            )
        if agents is not None:
            agents = _texts("agents", agents, "one name for each answer")
            if len(agents) != len(response_list):
                raise RecordError(
                    f"{len(agents)} agents were named for {len(response_list)} answers; expected one for each"
                )
        dimension, question = _checked_text("dimension", dimension), _checked_text("question", question)
        judged = self._judge_answers(
            response_list, agents, dimension, self._item(question, choices, same), same, needs_call
        )
        verdict = self._panel_verdict(judged, dimension, question)
        doubt = ""
        if len(question) > MOST_TEXT:
            doubt = f"of the {len(question)} characters of the question the last {MOST_TEXT} were read"
        elif not question and same is None and self.same not in NO_TEXTS and len(verdict.classes) > 1:
            doubt = "no question came: answers that repeat it and answers that do not were not told the same"
        return replace(verdict, reason="; ".join(filter(None, [verdict.reason, doubt]))) if doubt else verdict

    def _item(self, question: str, choices: Sequence[str] | None, same: object = None) -> Item:
        """Returns the question as answers are compared by it. Raises `RecordError` for choices or `same` of no use."""
        if same is not None and not callable(same):
            raise RecordError(f"same is a {type(same).__name__}; expected a function of an answer's text")
        options = _texts("choices", () if choices is None else choices, "the texts of the options")
        if len(options) > MOST_OPTIONS or sum(map(len, options)) > MOST_TEXT:
            raise RecordError(f"{len(options)} choices came; expected at most {MOST_OPTIONS}, of few words each")
        check = self.same if self.same in COMPARABLE_CHECKS else "none"
        return Item("", question[-MOST_TEXT:], check=check, choices=options)  # type: ignore[arg-type]

    def _judge_answers(
        self,
        response_list: Sequence[object],
        agent_names: Sequence[str] | None,
        dimension: str,
        item: Item,
        same: Callable[[str], Hashable | None] | None = None,
        needs_call: bool = False,
    ) -> _JudgedAnswers:
        """Returns the models' results for at least one answer. By default the answers name their agents."""
        # Read the answers, and put equal ones into classes.
        most = MOST_TEXT_TOGETHER // len(response_list)
        agent_of_answer: Sequence[str | None] = [None] * len(response_list) if agent_names is None else agent_names
        read_answers = [
            self._read_answer(answer, agent_name, item, same, most, needs_call)
            for answer, agent_name in zip(response_list, agent_of_answer, strict=True)
        ]
        agent_names = [answer.agent for answer in read_answers] if agent_names is None else agent_names
        forms = [answer.form for answer in read_answers]
        by_words = same is None and self.same == OVERLAP
        numbers = overlapping(forms) if by_words else number_classes(forms)
        members: dict[int, list[int]] = {}
        for place, number in enumerate(numbers):
            if number >= 0:
                members.setdefault(number, []).append(place)
        # The log-odds of each answer by itself.
        one_only = len(self.agents.names) == 1  # all answers are of this agent, whatever its name
        agents = [0 if one_only else self.agents.agent(name) for name in agent_names]
        dimension_column = self.agents.dimension(dimension)
        scaled, odds = (
            [self.agents.scaled(answer.signals, agent) for answer, agent in zip(read_answers, agents, strict=True)],
            [],
        )
        for agent, scores in zip(agents, scaled, strict=True):
            alone, weights = self._weights(agent, dimension_column)
            odds.append(alone + sum(map(mul, weights, scores)))
        # P(right) of each class, and the class to keep.
        answers = _one_panel(numbers, agents, dimension_column, scaled)
        classes, p = self.classes_of(answers, np.array([odds]))
        kept_class = pick(self._pick_of(read_answers), classes, p)
        return _JudgedAnswers(
            read_answers,
            agent_names,
            agents,
            odds,
            [*p[0, : len(members)].tolist(), float(p[0, -1])],
            int(kept_class[0]),
            state_rows(classes, p, kept_class),
            members,
        )

    def _pick_of(self, read_answers: Sequence[_Read]) -> str:
        """Returns the way to pick among these answers: the most frequent class if answers call tools and the panel
        learned from no tool calls.
        """
        unlearned = not self.knows_calls and any(answer.calls and answer.form is not None for answer in read_answers)
        return MAJORITY if unlearned else self.pick

    def _read_weights(self, agent: int, dimension: int) -> tuple[float, list[float]]:
        """Returns the log-odds of an answer without signals, of an agent on a dimension, and the weight (S,) of each
        signal's score. Raises `ContractMismatch` where the answers' graph is not linear."""
        S = len(self.agents.signals)
        scaled = FAR * np.concatenate([np.zeros((1, S)), np.eye(S), np.ones((1, S))])[None]
        form, present = np.zeros((1, S + 2), dtype=np.int64), np.ones((1, S + 2), dtype=bool)
        without_signals, *with_each_signal, with_all_signals = self.odds(
            Answers(form, form + agent, form[0, :1] + dimension, scaled, present)
        )[0]
        weights = [float(with_one - without_signals) / FAR for with_one in with_each_signal]
        if abs(without_signals + FAR * sum(weights) - with_all_signals) > 1e-4 * FAR:
            raise ContractMismatch(f"{self.checkpoint.path}: {ODDS_GRAPH} is not linear; train it again")
        return float(without_signals), weights

    def _panel_verdict(self, judged: _JudgedAnswers, dimension: str, question: str) -> PanelVerdict:
        classes = [
            PanelClass(judged.read[judged.surest(number)].text, judged.probability[number], tuple(members))
            for number, members in judged.members.items()
        ]
        worth = {}
        if self._gain is not None and len(self.agents.names) == 1:
            worth = {self.agents.names[0]: float(self.gain(judged.state)[0])}
        elif self.asks is not None and self._gain is not None:
            progress = self._progress_of(judged, question, {}, dimension)
            gain = self.gain(ask_rows_of(judged.state, progress)).tolist()
            worth = {self.agents.names[agent]: gain[agent] for agent in progress.left}
        return PanelVerdict(
            classes=tuple(sorted(classes, key=lambda panel_class: -panel_class.probability)),
            none=judged.probability[-1],
            kept=judged.place,
            score=None if judged.kept < 0 else judged.probability[judged.kept],
            worth=worth,
            checkpoint=self.checkpoint.digest,
            reason=self._reason(judged, dimension),
        )

    def odds(self, answers: Answers) -> Floats:
        """Returns the log-odds (b, k) that each answer is right by itself."""
        X = answer_rows(answers, self.agents)
        flat = X.reshape(X.shape[0] * X.shape[1], X.shape[2])  # -1 cannot be told where nothing is read of an answer
        return self._checked_output(self._odds.run({ODDS_INPUT: flat})[ODDS].reshape(X.shape[:2]))

    def _checked_output(self, values: NDArray[np.float32]) -> Floats:
        """Returns a graph's output as float64. Raises `ContractMismatch` if a value is NaN or infinite."""
        if not math.isfinite(np.add.reduce(values, axis=None)):
            raise ContractMismatch(f"{self.checkpoint.path} gives no number for an answer: take another one")
        return values.astype(np.float64)

    def classes_of(self, answers: Answers, odds: Floats) -> tuple[Classes, Floats]:
        """Returns the classes of b panels, and P(right) of each class and of "none of these", (b, c + 1)."""
        table = class_rows(answers, odds, self.agents, exclusive=self.exclusive)
        p = np.zeros(table.rows.shape[:2])
        for panel in range(len(p)):
            legal = np.append(table.there[panel], True)  # the classes of one panel share a softmax
            p[panel, legal] = self._probabilities(table.rows[panel, legal])
        return table, p

    def _probabilities(self, rows: NDArray[np.float32]) -> list[float]:
        """Returns P(right) (c + 1,) for the rows of one panel. Raises `ContractMismatch` where the graph gives none."""
        values: list[float] = self.checkpoint.run({INPUT: rows})[PROBABILITY].ravel().tolist()
        if (
            len(values) != len(rows)
            or not all(-PROBABILITY_SLACK <= value <= 1 + PROBABILITY_SLACK for value in values)
            or (self.exclusive and abs(sum(values) - 1) > PROBABILITY_SLACK * len(values))
        ):
            raise ContractMismatch(f"{self.checkpoint.path} gives no probability for each answer: take another one")
        if not self.exclusive:
            values[-1] = math.prod(1 - value for value in values[:-1])
        return values

    def gain(self, states: NDArray[np.float32]) -> Floats:
        """Returns by how much asking on is expected to raise P(right), (n,), from states (n, len(STATE)), or of several
        agents by asking each from their rows (n, len(ASK_STATE)). Raises `RecordError` if the checkpoint stores no
        model of the gain.
        """
        if self._gain is None:
            raise RecordError(
                f"{self.checkpoint.path} knows no gain of asking on: it learned from answers without costs"
            )
        return self._checked_output(self._gain.run({GAIN_INPUT: states})[GAIN_OUTPUT].ravel())

    def _read_answer(
        self,
        response: object,
        agent: str | None,
        item: Item,
        same: Callable[[str], Hashable | None] | None,
        most: int,
        needs_call: bool,
    ) -> _Read:
        """Returns one answer, read. `agent`: who gave it, None for whom the answer names."""
        unknown = [math.nan] * len(self.agents.signals)
        try:
            answer = whole(response if isinstance(response, PanelAnswer) else answer_of(response))
        except InvalidResponse as error:
            return _Read("", None, unknown, "", f"cannot be read ({shown(error)})")
        except Exception as error:  # of an object that a caller made, which may raise anything where it is looked into
            return _Read("", None, unknown, "", f"cannot be read ({shown(told(error))})")
        try:
            whose = answer.agent if agent is None else agent
            answer, left_out = self._with_known_signals(answer, whose)
            signals = signals_in(answer, self.agents.signals)
            form, note = comparable_form(answer, item, self.same, same, most)
        except InvalidResponse as error:
            return _Read(answer.text, None, unknown, answer.agent, f"cannot be read ({shown(error)})")
        except Exception as error:  # of a caller's own idea of the same
            return _Read(answer.text, None, unknown, answer.agent, f"cannot be compared ({shown(told(error))})")
        calls = bool(answer.calls)
        if needs_call and not calls and form is not None:
            form, note = None, "is words, and the request requires a tool call"
        if calls and not self.knows_calls:
            signals = unknown  # how sure a model is of words says nothing of how sure it is of a call
        other, mode = "", answer.logprobs_mode
        if answer.logprobs is not None:
            generator = self.checkpoint.manifest.generator
            other = mismatch(generator, model="", logprobs_mode=mode, on_mismatch="note", stacklevel=1)
        doubt = "; ".join(filter(None, [answer.note, other, *self._unread(answer, whose)]))
        return _Read(answer.text, form, signals, answer.agent, note, doubt, calls, left_out)

    def _with_known_signals(self, answer: PanelAnswer, agent: str) -> tuple[PanelAnswer, str]:
        """Returns the answer with signals only from sources that the checkpoint learned from, and why others are left
        out.

        Raises `InvalidResponse` for log-probabilities that are no numbers.
        """
        notes = []
        if SCORE in self.agents.signals and answer.score is not None and answer.score_source != self.score_by:
            source_clause = (
                f"of the question {answer.score_source[:80]!r}"
                if answer.score_source
                else "of no question that is named"
            )
            notes.append(f"the score is {source_clause}, and the panel learned from {self.score_by!r}: it was left out")
            answer = replace(answer, score=None)
        if STATED in self.agents.signals:
            column = 0 if len(self.agents.names) == 1 else self.agents.agent(agent)
            name = self.agents.names[column] if column < len(self.agents.names) else None
            levels = self.agents.scales[column][self.agents.signals.index(STATED)]
            answer, why = with_learned_confidence(answer, source_for(self.sources, name), levels)
            notes += [why] if why else []
        return answer, "; ".join(notes)

    def _unread(self, answer: PanelAnswer, agent: str) -> list[str]:
        """Returns, in words, which numbers of an answer are not read: too few answers had them in training, or none of
        this agent's answers."""
        numbers = {STATED: answer.stated, SCORE: answer.score, "": answer.logprobs}
        kinds_given = [signal_kind(name) for name, number in numbers.items() if number is not None]
        kinds_missing = self._lacks[0 if len(self.agents.names) == 1 else self.agents.agent(agent)]
        notes = []
        for kind in kinds_given:
            if kind in self.left_out:
                had = f"{self.left_out[kind]:.1%} of the answers learned from"
                notes.append(f"its {kind} is not read: {had} had any")
            elif kind in kinds_missing:
                notes.append(f"its {kind} is not read: none of {agent[:80]}'s answers learned from had any")
        return notes

    def _reason(self, judged: _JudgedAnswers, dimension: str) -> str:
        read_answers, n = judged.read, len(judged.read)
        notes = []
        # Answers that cannot be read, and doubts about others.
        if judged.kept < 0:
            notes.append("no answer can be read, so none is kept")
        elif n == 1 and len(self.agents.names) == 1:  # several agents are often asked one answer by plan
            notes.append("one answer alone: nothing agrees or disagrees with it")
        if unread := [
            f"answer {place} {read_answer.note}" for place, read_answer in enumerate(read_answers) if read_answer.note
        ]:
            more = f", and {len(unread) - 3} more" if len(unread) > 3 else ""
            notes.append(f"{len(unread)} of {n} answers count against all others: {'; '.join(unread[:3])}{more}")
        doubts = [
            read_answer.doubt for read_answer in read_answers if read_answer.doubt and read_answer.form is not None
        ]
        notes += [f"of {doubts.count(doubt)} answers: {doubt}" for doubt in list(dict.fromkeys(doubts))[:3]]
        compared = [
            (read_answer, agent)
            for read_answer, agent in zip(read_answers, judged.agents, strict=True)
            if read_answer.form is not None
        ]
        # Tool calls and confidences that the panel did not learn from.
        if not self.knows_calls and (called := sum(read_answer.calls for read_answer, _ in compared)):
            callers = "1 answer calls" if called == 1 else f"{called} answers call"
            notes.append(
                f"{callers} tools, and this checkpoint learned no tool calls: the most frequent answer is kept"
            )
            compared = [(read_answer, agent) for read_answer, agent in compared if not read_answer.calls]
        left_out = [read_answer.left_out for read_answer, _ in compared if read_answer.left_out]
        notes += [f"of {left_out.count(why)} answers: {why}" for why in list(dict.fromkeys(left_out))[:3]]
        compared = [(read_answer, agent) for read_answer, agent in compared if not read_answer.left_out]
        # Missing signals. An agent that never gave a signal in training is not said to lack it.
        lacking = [
            [gives and math.isnan(value) for gives, value in zip(self._gives[agent], read_answer.signals, strict=True)]
            for read_answer, agent in compared
        ]
        missing = [sum(column) for column in zip(*lacking, strict=True)]
        if (most := max(missing, default=0)) > 0:
            name = self.agents.signals[missing.index(most)]
            signal_words = {STATED: "stated confidence", SCORE: "score"}.get(name, "log-probabilities")
            if name == STATED and {*self.sources.values()} and {*self.sources.values()} <= {*FROM_LOGPROBS}:
                signal_words = "log-probabilities"
            notes.append(f"{most} answers have no {signal_words}, which this checkpoint reads")
        # Unknown agents and dimensions, and too many answers.
        unnamed = {""} if len(self.agents.names) == 1 else set()  # samples of the one agent need not name it
        if self._models and (unknown_agents := sorted(set(judged.named) - self._models - unnamed)):
            learned = names_shown(sorted(self._models))
            notes.append(f"nothing is known of {names_shown(unknown_agents)}: the checkpoint learned from {learned}")
        if dimension and self.agents.dimensions and dimension not in self.agents.dimensions:
            notes.append(f"the dimension {dimension[:MOST_TOLD]!r} was not learned from")
        if n > self.most:
            notes.append(f"{n} answers came, and this checkpoint learned from at most {self.most} of a question")
        return str(without_surrogates("; ".join(notes)))

    def plan(self, *, price: float | None = None, samples: float | None = None) -> Plan:
        """Returns when to stop asking, from the checkpoint's own curves.

        `price`: how much P(right) each further answer must bring; `samples`: the mean number of answers to spend. By
        default the fewest that come within 0.005 of the best accuracy. Raises `RecordError` where both are given, or
        the checkpoint is of several agents, for which it stores no curves.
        """
        if not self.settings:
            raise RecordError(f"{self.checkpoint.path} stores no curves of stopping: it is of several agents")
        return plan_of(self.settings, price=price, samples=samples)

    def next(
        self,
        question: str,
        dimension: str | None,
        answers: Sequence[PanelAnswer],
        price: float | None = None,
        prices: Mapping[str, PriceOf] | None = None,
        request_id: str = "",
        *,
        budget: float | None = None,
        choices: Sequence[str] = (),
        same: Callable[[str], Hashable | None] | None = None,
        needs_call: bool = False,
    ) -> PanelStep:
        """Returns which agent to ask after these answers, or that asking stops.

        `answers`: one of each agent that was asked, by its name; one that failed is `cut`. `price`: accuracy that a US
        dollar for 1,000 questions must bring; or `budget`: mean US dollars for 1,000 questions. `prices`: dollars an
        answer by agent, or a `Price` of its tokens, in place of the checkpoint's; an agent with an infinite price
        cannot be asked. The checkpoint's curves do not hold at other prices: a priced cascade then decides, or without
        confidences the expected gain, at `price` or what a dollar brings there. `request_id`, by default the question,
        decides between mixed settings. `choices`, `same` and `needs_call` are as for `judge`. Raises `RecordError` as
        `ask_plan`, for prices that are no numbers, and for those of tokens where the checkpoint does not know how many
        an agent takes.
        """
        # Check the arguments.
        dimension, question = _checked_text("dimension", dimension), _checked_text("question", question)
        request_id = _checked_text("request_id", request_id)
        if isinstance(answers, PanelAnswer) or not isinstance(answers, Iterable):
            raise RecordError(f"answers came as {type(answers).__name__}; expected a list of PanelAnswer")
        if strange := [answer for answer in answers if not isinstance(answer, PanelAnswer)]:
            raise RecordError(f"an answer came as {type(strange[0]).__name__}; expected PanelAnswer(text, agent)")
        agent_names = _texts("agents", [answer.agent for answer in answers], "the name of each agent that was asked")
        # Choose the setting. The curves do not hold at other prices; an agent that cannot be asked does not count.
        setting = self.ask_plan(price=price, budget=budget).setting(draw_of(request_id or f"{dimension}\n{question}"))
        given_prices = {
            name: self._dollars(name, price_of_agent, dimension) for name, price_of_agent in (prices or {}).items()
        }
        mean_prices = self.mean_prices(dimension) if given_prices else {}
        if any(
            math.isfinite(price_of_agent)
            and name in mean_prices
            and abs(price_of_agent - mean_prices[name]) > NEAR_PRICE * mean_prices[name]
            for name, price_of_agent in given_prices.items()
        ):
            assert self.asks is not None
            worth_of_dollar = self.asks.curves.implied_price(setting.cost) if price is None else float(price)
            way = ASK_BY_GAIN if self._gain is not None else ASK_BY_WORDS
            if self.asks.sure is not None and self.asks.sure.spread.any():
                way = PRICED
            setting = AskSetting(way, worth_of_dollar, tuple(range(len(self.agents.names))), (), 0.0, 0.0)
        # Judge the answers so far, and choose the next agent.
        item = self._item(question, choices, same) if answers or choices or same is not None else None
        judged = (
            self._judge_answers(answers, agent_names, dimension, item, same, needs_call) if answers and item else None
        )
        progress, gain = self._progress_of(judged, question, given_prices, dimension), None
        worth, names = {}, self.agents.names
        if setting.way == ASK_BY_GAIN:
            gain = self.gain(ask_rows_of(judged.state if judged else EMPTY_STATE, progress)).tolist()
            worth = {names[agent]: gain[agent] - setting.price * progress.price[agent] for agent in progress.left}
        elif setting.way == PRICED:
            gain = progress.worth(setting)
            worth = {names[agent]: gain[agent] for agent in progress.left}
        column = next_agent(setting, progress, gain)
        doubts = [self._reason(judged, dimension)] if judged else []
        if strangers := sorted(str(name) for name in given_prices if name not in names):
            doubts.append(f"nothing is known of {names_shown(strangers)}, whose price was given")
        if column >= 0:
            reason = "; ".join(filter(None, [f"by {setting.name}", *doubts]))
            return PanelStep(names[column], worth, reason, progress.chance[column])
        # Asking stops: choose the answer to keep, and correct its P(right).
        keep = judged.place if judged else None
        if judged and (last := kept_by(setting, progress.answered, progress.odds)) >= 0:
            keep = next(
                place
                for place, name in enumerate(agent_names)
                if name == names[last] and judged.read[place].form is not None
            )
        expected = 0.0
        assert self.asks is not None
        if judged is not None and keep is not None:
            class_number, places = next(
                (class_number, places) for class_number, places in judged.members.items() if keep in places
            )
            expected = self.asks.after.probability(
                judged.probability[class_number], sum(progress.answered), len(places) - 1
            )
        why = f"by {setting.name}" if progress.left else "nobody is left to ask"
        return PanelStep(None, worth, "; ".join(filter(None, [why, *doubts])), expected, keep)

    @property
    def always_stated(self) -> tuple[str, ...]:
        """The agents that stated how sure they are in training."""
        if STATED not in self.agents.signals:
            return ()
        has_stated = np.isfinite(self.agents.levels[:-1, self.agents.signals.index(STATED), 0])
        return tuple(name for name, stated in zip(self.agents.names, has_stated.tolist(), strict=True) if stated)

    def chances(self, answers: Sequence[PanelAnswer], *, dimension: str = "", question: str = "") -> dict[str, float]:
        """Returns P(right) of every agent: of those in `answers` by their answer alone, of others by the question.

        Raises `RecordError` where the checkpoint stores no way of asking.
        """
        self.ask_plan()
        agent_names = [answer.agent for answer in answers]
        judged = self._judge_answers(answers, agent_names, dimension, self._item(question, ())) if answers else None
        progress = self._progress_of(judged, question, {}, dimension)
        p = zip(self.agents.names, progress.answered, progress.odds, progress.chance, strict=True)
        return {name: 1 / (1 + math.exp(-odds)) if has else chance for name, has, odds, chance in p}

    def chances_of_stated(self, stated: Mapping[str, float | None], *, dimension: str = "") -> dict[str, float]:
        """Returns P(right) of every agent by the confidences that agents stated before they answered.

        Args:
            stated: agent -> its confidence, as the panel's sources give it; None where it gave none.
            dimension: dimension of the question; empty where it is not known.

        Raises `RecordError` where the checkpoint stores no way of asking.
        """
        answers = [
            PanelAnswer(untold(agent), agent, stated=confidence, stated_source=self.sources.get(agent, ""))
            for agent, confidence in stated.items()
        ]
        return self.chances(answers, dimension=dimension)

    def source_mismatch(self, agent: str, source: str, *, whole: bool = False) -> str:
        """Returns what is wrong with an agent's confidence from this source; empty if nothing is.

        `whole`: whether the source is the only one of a whole collection (`sources.describe_mismatch`).
        """
        return describe_mismatch(self.sources, agent, source, whole=whole)

    def ask_plan(self, *, price: float | None = None, budget: float | None = None) -> AskPlan:
        """Returns how several agents are asked, from the checkpoint's own curves.

        `price`: accuracy that a US dollar for 1,000 questions must bring; `budget`: mean US dollars for 1,000
        questions. By default the cheapest within 0.005 of the best accuracy. Raises `RecordError` for both, for a
        budget that no way of asking keeps, and where the checkpoint stores no way of asking.
        """
        if self.asks is None:
            raise RecordError(
                f"{self.checkpoint.path} stores no way of asking several agents: it learned from one agent, or from "
                "answers without their costs"
            )
        return self.asks.curves.plan(price=price, budget=budget)

    def budget_control(self, budget: float) -> BudgetController:
        """Returns a control that corrects the budget of each question's plan by what was spent before.

        `budget`: mean US dollars for 1,000 questions. Raises `RecordError` as `ask_plan`, and for a budget of 0.
        """
        self.ask_plan(budget=budget)
        assert self.asks is not None
        return BudgetController(budget, self.asks.curves.least)

    def _dollars(self, name: str, price: object, dimension: str) -> float:
        """Returns a caller's price of an answer. Raises `RecordError` where it is no number of at least 0, or is of
        tokens and the checkpoint does not know how many the agent takes."""
        cost = price
        if isinstance(price, Price):
            if name not in self.agents.names:
                return 0.0  # it is not asked
            assert self.asks is not None
            prompt, completion = self.asks.tokens[:, self.agents.agent(name), self.agents.dimension(dimension)].tolist()
            if not math.isfinite(prompt + completion):
                raise RecordError(
                    f"the price of {name} is of tokens, and the checkpoint does not know how many it takes: give "
                    "dollars an answer, or train it on outcomes with prompt_tokens and completion_tokens"
                )
            cost = (prompt * price.prompt + completion * price.completion) / 1e6
        if isinstance(cost, bool) or not isinstance(cost, Real) or not float(cost) >= 0:
            raise RecordError(f"the price of {name} is {price!r}; expected US dollars an answer, at least 0")
        return float(cost)

    def mean_prices(self, dimension: str = "") -> dict[str, float]:
        """Returns US dollars an answer by agent, as the checkpoint learned them; empty where it learned none."""
        if self.asks is None:
            return {}
        dimension_index = self.agents.dimension(dimension)
        return dict(zip(self.agents.names, (self.asks.price[:, dimension_index] / 1000).tolist(), strict=True))

    def _progress_of(
        self, judged: "_JudgedAnswers | None", question: str, prices: Mapping[str, float], dimension: str
    ) -> QuestionProgress:
        """Returns the state of one question, from which the next agent to ask is chosen."""
        assert self.asks is not None
        dimension_index, A = self.agents.dimension(dimension), len(self.agents.names)
        was_asked, answered, odds, form = [False] * A, [False] * A, [0.0] * A, [-1] * A
        if judged is not None:
            number = {place: class_number for class_number, places in judged.members.items() for place in places}
            for place, (column, odds_of_answer, read_answer) in enumerate(
                zip(judged.agents, judged.odds, judged.read, strict=True)
            ):
                if column < A:
                    was_asked[column] = True
                    if read_answer.form is not None and not answered[column]:
                        answered[column], odds[column], form[column] = True, odds_of_answer, number[place]
        price, agents_left = (
            self.asks.price[:, dimension_index].tolist(),
            [agent for agent in range(A) if not was_asked[agent]],
        )
        if prices:
            price = [
                1000 * prices.get(name, odds_of_answer) for name, odds_of_answer in self.mean_prices(dimension).items()
            ]
            agents_left = [agent for agent in agents_left if math.isfinite(price[agent])]
        chance = _chance(self.asks, self.agents, question[-MOST_TEXT:], dimension_index)
        return QuestionProgress(
            was_asked,
            answered,
            agents_left,
            odds,
            self.agents.usual[dimension_index][:A],
            chance,
            price,
            form,
            self.asks.sure,
        )

    def settled(
        self,
        responses: Sequence[object],
        more: int,
        *,
        dimension: str = "",
        question: str = "",
        choices: Sequence[str] = (),
        same: Callable[[str], Hashable | None] | None = None,
        needs_call: bool = False,
    ) -> bool:
        """Returns whether `more` further answers of one agent, whatever they are, cannot change which class is kept.

        The worst case is tried: all of them as sure as an answer of the agent can be, and in one other class, that came
        or is new. If classes are chosen by the joint way there is no worst case, so nothing is ever settled. The other
        arguments are as for `judge`.
        """
        response_list = responses_in(responses)
        if not response_list or len(response_list) + more > MOST_TOGETHER:
            return False
        item = self._item(question, choices, same)
        judged = self._judge_answers(response_list, None, dimension, item, same, needs_call)
        # The ways by which the class may be kept: a further answer that calls tools may change the way.
        ways = {self._pick_of(judged.read), *([] if self.knows_calls else [MAJORITY])}
        if judged.kept < 0 or JOINT in ways:
            return False
        dimension_column, numbers = self.agents.dimension(dimension), [-1] * len(response_list)
        for number, members in judged.members.items():
            for place in members:
                numbers[place] = number
        # An answer as sure as one of the agent can be: scores lie between the normal scores of the quantiles.
        agent = judged.agents[0]
        alone, weights = self._weights(agent, dimension_column)
        surest = alone + NORMAL_SCORES[-1] * sum(map(abs, weights))
        scaled = [[0.0] * len(self.agents.signals)] * (len(response_list) + more)  # read by the joint way alone
        odds, agents = np.array([judged.odds + [surest] * more]), judged.agents + [agent] * more
        for rival in range(len(judged.members) + 1):
            if rival != judged.kept:
                answers = _one_panel(numbers + [rival] * more, agents, dimension_column, scaled)
                classes = class_rows(answers, odds, self.agents, exclusive=self.exclusive)
                if any(pick(way, classes, classes.best)[0] != judged.kept for way in ways):
                    return False
        return True

    def stops(self, verdict: PanelVerdict, setting: Setting, answers: int, judged: int) -> bool:
        """Returns whether a setting of a plan stops after so many answers, of which `judged` came in a response."""
        counts = sorted((len(panel_class.members) for panel_class in verdict.classes), reverse=True)
        number = {
            place: class_number
            for class_number, panel_class in enumerate(verdict.classes)
            for place in panel_class.members
        }
        judged_answers = max(number, default=-1) + 1
        latest = [number.get(place, -1 - place) for place in range(judged_answers - 1, -1, -1)]
        row = next(
            (class_number for class_number, panel_class in enumerate(latest) if panel_class != latest[0]), len(latest)
        )
        seen = Seen(
            answers=answers,
            count=counts[0] if counts else 0,
            second=counts[1] if len(counts) > 1 else 0,
            row=row if judged_answers == judged else 0,
            score=verdict.score or 0.0,
            gain=next(iter(verdict.worth.values()), 0.0),
        )
        return setting.stops(seen)


@lru_cache(maxsize=64)
def _chance(asks: Asks, agents: AgentProfiles, question: str, dimension: int) -> list[float]:
    """Returns P(right) of each agent before anybody is asked, (A,). A question is looked at after every answer."""
    return list(chance_of(agents.rate[:, dimension], asks.words.shifts(question)).tolist())


def _is_whole(setting: Setting) -> bool:
    """Returns whether a setting of a checkpoint is one that can be: a known way, and numbers in their ranges."""
    is_known = setting.way in STOPS and np.isfinite((setting.threshold, setting.samples, setting.accuracy)).all()
    return bool(is_known and setting.samples >= 1 and 0 <= setting.accuracy <= 1)


def _one_panel(
    numbers: Sequence[int], agents: Sequence[int], dimension: int, scaled: Sequence[Sequence[float]]
) -> Answers:
    """Returns the answers to one question as a batch of one panel.

    Args:
        numbers: class of each answer.
        agents: column of each answer's agent.
        dimension: column of the question's dimension.
        scaled: normal scores of each answer's signals.
    """
    present = np.ones((1, len(numbers)), dtype=bool)
    return Answers(np.array([numbers]), np.array([agents]), np.array([dimension]), np.array([scaled]), present)


def _graph(checkpoint: Checkpoint, name: str, input_name: str, width: int, output: str) -> GraphSession:
    """Returns a further graph of the checkpoint. Raises `ValueError` where it does not turn rows into a number each."""
    session = checkpoint.graphs[name]
    inputs = [(tensor.name, tensor.type, tensor.shape) for tensor in session.inputs]
    outputs = [(tensor.name, tensor.type, tensor.shape[1:]) for tensor in session.outputs]
    if inputs != [(input_name, "float32", (None, width))] or outputs != [(output, "float32", (1,))]:
        raise ValueError(f"{name} gives {outputs} for {inputs}")
    return session


def _checked_text(name: str, value: object) -> str:
    """Returns a text; empty for None. Raises `RecordError` for anything else."""
    if value is not None and not isinstance(value, str):
        raise RecordError(f"{name} is a {type(value).__name__}; expected a text")
    return value or ""


def _texts(name: str, value: object, expected: str) -> tuple[str, ...]:
    """Returns the members of what was given; None is an empty text. Raises `RecordError` where one is no text."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise RecordError(f"{name} came as {type(value).__name__}; expected {expected}")
    members = list(value)
    for member in members:
        if member is not None and not isinstance(member, str):
            raise RecordError(f"{name} holds a {type(member).__name__}; expected {expected}")
    return tuple(str(member or "") for member in members)


def agents_json(agents: AgentProfiles) -> bytes:
    """Returns the bytes of agents.json; NaN as null."""
    levels = np.ma.masked_invalid(agents.levels).tolist()  # NaN is null
    record = {"names": agents.names, "dimensions": agents.dimensions, "rate": agents.rate.tolist()}
    return json.dumps({**record, "signals": agents.signals, "levels": levels, "leading": agents.leading}).encode()


def read_agents(data: bytes) -> AgentProfiles:
    """Returns the agents in the content of agents.json. Raises `ValueError`, `KeyError` or `TypeError` if the content
    is incomplete.
    """
    record = json.loads(data)
    names, dimensions, signals = (tuple(map(str, record[key])) for key in ("names", "dimensions", "signals"))
    levels = np.array(record["levels"], dtype=np.float64).reshape(
        len(names) + 1, len(signals), QUANTILE_COUNT
    )  # null is NaN
    is_missing = np.isnan(levels)
    if not (is_missing | np.isfinite(levels)).all() or (np.diff(levels, axis=2) < 0).any():
        raise ValueError("the levels of a signal do not rise")
    if (is_missing.any(axis=2) != is_missing.all(axis=2)).any():
        raise ValueError("a signal has some of its levels")
    if not names or len(set(dimensions)) < len(dimensions):
        raise ValueError(f"the agents are {names} and the dimensions {dimensions}")
    if len(set(names)) < len(names) or len(set(signals)) < len(signals) or not set(signals) <= set(ANSWER_SIGNALS):
        raise ValueError(f"the agents are {names} and their signals {signals}")
    rate = np.array(record["rate"], dtype=np.float64)
    if rate.shape != (len(names), len(dimensions) + 1) or not np.isfinite(rate).all():
        raise ValueError(f"the rates have shape {rate.shape}")
    leading = str(record["leading"])
    if leading and leading not in signals:
        raise ValueError(f"the leading signal is {leading!r}")
    return AgentProfiles(names, dimensions, rate, signals, levels, leading)
