"""Judges several answers to one question: which to keep, how sure, and whom to ask next.

Needs NumPy and ONNX Runtime only. What is read of the answers, and the models' rows, is in `routing.panel_rows`; how
they are fitted in `training.recipes.panel`.
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
from metaprobe.probes.contract import mismatch
from metaprobe.records.errors import InvalidResponse, RecordError
from metaprobe.records.reading import without_surrogates
from metaprobe.records.types import Item
from metaprobe.routing.panel_answers import (
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
from metaprobe.routing.panel_asks import (
    ASK_STATE,
    ASKED_ON,
    GAIN_MARGIN,
    PRICED,
    STOPS,
    Asking,
    AskPlan,
    Asks,
    AskSetting,
    Plan,
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
from metaprobe.routing.panel_asks import GAIN as ASK_BY_GAIN
from metaprobe.routing.panel_asks import WORDS as ASK_BY_WORDS
from metaprobe.routing.panel_rows import (
    ANSWER_SIGNALS,
    EMPTY_STATE,
    MAJORITY,
    PANEL_STATE,
    PICKS,
    QUANTILE_COUNT,
    SCORE,
    STATED,
    Agents,
    Answers,
    Classes,
    Floats,
    answer_columns,
    answer_rows,
    class_columns,
    class_rows,
    one_panel,
    one_state,
    pick_one,
)
from metaprobe.routing.panel_sources import (
    FROM_LOGPROBS,
    describe_mismatch,
    read_sources,
    source_for,
    with_learned_confidence,
)

PANEL_KIND = "panel"
PriceOf = float | Price
"""US dollars an answer, or a price of its tokens."""
INPUT, PROBABILITY = "classes", "probability"
ODDS_GRAPH, GAIN_GRAPH, AGENTS = "answers.onnx", "gain.onnx", "agents.json"
ODDS_INPUT, ODDS = "answers", "odds"
GAIN_INPUT, GAIN = "state", "gain"
WORDS_FILE = "words.f32"
TOOL_CALLS = "tool_calls"
"""In the contract: whether tool calls were among the answers that the panel learned from."""
ROUNDED = 1e-5
"""By how much a probability may leave [0, 1] through rounding."""
FAR = 1024.0
"""Score of a signal at which its weight is read from the answers' graph: high, so that rounding to float32 is small."""
MOST_OPTIONS = 128
NEAR_PRICE = 0.01
"""Part of its price by which an agent may be dearer or cheaper than in training, where the curves still hold."""
MOST_SETTINGS = 1000
"""Ways to stop that a checkpoint may store; a trainer writes a few."""


@dataclass(frozen=True, slots=True, eq=False)
class _Read:
    """One answer, read; `form` is None where it cannot be compared with the others."""

    text: str
    form: Hashable | None
    signals: Sequence[float]
    agent: str
    note: str = ""
    """Why it counts against all others."""
    doubt: str = ""
    """Says what is doubtful about an answer that is compared."""
    calls: bool = False
    """Whether it is a tool call."""
    left_out: str = ""
    """Why a confidence that came with it is not read."""


@dataclass(frozen=True, slots=True, eq=False)
class _Looked:
    """Holds the numbers that the models give for the answers to one question."""

    read: Sequence[_Read]
    named: Sequence[str]
    """The agent of each answer."""
    agents: list[int]
    """(k,): column of the agent of each answer."""
    odds: list[float]
    """(k,): log-odds that each answer is right by itself."""
    probability: list[float]
    """(c + 1,): P(right) of each class and of none."""
    kept: int
    """Class that is kept, -1 for none."""
    state: list[float]
    """Values of the columns that `PANEL_STATE` names."""
    members: Mapping[int, list[int]]
    """Class -> places of its answers."""

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
    """P(right), less the price, that asking another agent must at least bring."""

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
            self.knows_calls = bool(contract.get(TOOL_CALLS, False))
            self.settings = tuple(Setting(*one) for one in contract["stops"][: MOST_SETTINGS + 1])
            if self.pick not in PICKS or self.same not in (*COMPARABLE_CHECKS, "none", OVERLAP):
                raise ValueError(f"the pick is {self.pick!r}, and answers are the same by {self.same!r}")
            if contract.get("texts") != compared_by(self.same):
                compared = contract.get("texts", "the way of an earlier version")
                raise ValueError(f"it compares answers by {compared}, and this version by {compared_by(self.same)}")
            if type(self.exclusive) is not bool or type(self.most) is not int or self.most < 1:
                raise ValueError(f"exclusive is {self.exclusive!r}, and most_answers {self.most!r}")
            if tuple(contract["columns"]) != class_columns(self.agents):
                raise ValueError("the columns are of another version")
            if len(self.settings) > MOST_SETTINGS or not all(map(_is_whole, self.settings)):
                raise ValueError("a way to stop is not known")
            one_agent = len(self.agents.names) == 1
            if not one_agent and self.settings:
                raise ValueError("ways to stop are stored of several agents")
            self.asks = None
            if (stored := contract.get("asks")) is not None:
                width = len(self.agents.names), len(self.agents.dimensions)
                self.asks = read_asks(stored, checkpoint.extra[WORDS_FILE], *width)
            by_gain = any(one.way == ASKED_ON for one in self.settings)
            if self.asks is not None:
                by_gain |= ASK_BY_GAIN in self.asks.curves.settings
            if GAIN_GRAPH not in checkpoint.extra and by_gain:
                raise ValueError("something goes by a gain, and none is stored")
            columns = len(PANEL_STATE) if one_agent else len(ASK_STATE)
            self._models = {*self.agents.names, *(manifest.generator.models if manifest.generator else ())} - {""}
            self._odds = _graph(checkpoint, ODDS_GRAPH, ODDS_INPUT, len(answer_columns(self.agents)), ODDS)
            self._gain = (
                _graph(checkpoint, GAIN_GRAPH, GAIN_INPUT, columns, GAIN) if GAIN_GRAPH in checkpoint.extra else None
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
        """Returns which answer to keep, and how sure it is. Never raises for what an answer holds: the reason says it.

        `responses`: a sequence of responses in any format of `parse_response`, of texts or of `PanelAnswer`; or one
        response with several choices. `agents`: who gave each, by default the model that the response names.
        `dimension`, `question`, `choices`: of the question, where they are known; options are read by them.
        `same`: returns a form in which equal answers are equal, None for no answer; by default as in training.
        `needs_call`: whether the request required a tool call, so that an answer in words counts against all others.
        Raises `RecordError` where there is no response, more than `MOST_TOGETHER`, another number of agents, or what
        is said of the question is no text.
        """
        given = responses_in(responses)
        if not given:
            raise RecordError("no response came; expected at least one answer to judge")
        if len(given) > MOST_TOGETHER:
            raise RecordError(
                f"more than {MOST_TOGETHER} answers to one question came; expected those of one question alone: in a "
                "file, does each line name its question_id?"
            )
        if agents is not None:
            agents = _texts("agents", agents, "one name for each answer")
            if len(agents) != len(given):
                raise RecordError(f"{len(agents)} agents were named for {len(given)} answers; expected one for each")
        dimension, question = _text("dimension", dimension), _text("question", question)
        looked = self._look(given, agents, dimension, self._item(question, choices, same), same, needs_call)
        verdict = self._verdict(looked, dimension, question)
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

    def _look(
        self,
        given: Sequence[object],
        named: Sequence[str] | None,
        dimension: str,
        item: Item,
        same: Callable[[str], Hashable | None] | None = None,
        needs_call: bool = False,
    ) -> _Looked:
        """Returns what the models make of at least one answer; `named`: the agents, by default those in the answers."""
        most = MOST_TEXT_TOGETHER // len(given)
        whose: Sequence[str | None] = [None] * len(given) if named is None else named
        read = [self._read(one, who, item, same, most, needs_call) for one, who in zip(given, whose, strict=True)]
        named = [one.agent for one in read] if named is None else named
        forms = [one.form for one in read]
        by_words = same is None and self.same == OVERLAP
        numbers = overlapping(forms) if by_words else number_classes(forms)
        members: dict[int, list[int]] = {}
        for place, number in enumerate(numbers):
            if number >= 0:
                members.setdefault(number, []).append(place)
        one_only = len(self.agents.names) == 1  # all answers are of it, whatever its name
        agents = [0 if one_only else self.agents.agent(name) for name in named]
        here = self.agents.dimension(dimension)
        scaled, odds = [self.agents.scaled(one.signals, agent) for one, agent in zip(read, agents, strict=True)], []
        for agent, scores in zip(agents, scaled, strict=True):
            alone, weights = self._weights(agent, here)
            odds.append(alone + sum(map(mul, weights, scores)))
        classes = one_panel(numbers, agents, here, scaled, odds, self.agents, self.exclusive)
        p = self._probabilities(np.array(classes.rows, dtype=np.float32))
        unlearned = not self.knows_calls and any(one.calls and one.form is not None for one in read)
        kept = pick_one(MAJORITY if unlearned else self.pick, classes, p)
        return _Looked(read, named, agents, odds, p, kept, one_state(classes, p, kept), members)

    def _read_weights(self, agent: int, dimension: int) -> tuple[float, list[float]]:
        """Returns the log-odds of an answer without signals, of an agent on a dimension, and the weight (S,) of each
        signal's score. Raises `ContractMismatch` where the answers' graph is not linear."""
        S = len(self.agents.signals)
        scaled = FAR * np.concatenate([np.zeros((1, S)), np.eye(S), np.ones((1, S))])[None]
        form, present = np.zeros((1, S + 2), dtype=np.int64), np.ones((1, S + 2), dtype=bool)
        alone, *each, together = self.odds(Answers(form, form + agent, form[0, :1] + dimension, scaled, present))[0]
        weights = [float(one - alone) / FAR for one in each]
        if abs(alone + FAR * sum(weights) - together) > 1e-4 * FAR:
            raise ContractMismatch(f"{self.checkpoint.path}: {ODDS_GRAPH} is not linear; train it again")
        return float(alone), weights

    def _verdict(self, looked: _Looked, dimension: str, question: str) -> PanelVerdict:
        classes = [
            PanelClass(looked.read[looked.surest(number)].text, looked.probability[number], tuple(members))
            for number, members in looked.members.items()
        ]
        worth = {}
        if self._gain is not None and len(self.agents.names) == 1:
            worth = {self.agents.names[0]: float(self.gain(np.array([looked.state], dtype=np.float32))[0])}
        elif self.asks is not None and self._gain is not None:
            known = self._known_of(looked, question, {}, dimension)
            gain = self.gain(ask_rows_of(looked.state, known)).tolist()
            worth = {self.agents.names[agent]: gain[agent] for agent in known.left}
        return PanelVerdict(
            classes=tuple(sorted(classes, key=lambda one: -one.probability)),
            none=looked.probability[-1],
            kept=looked.place,
            score=None if looked.kept < 0 else looked.probability[looked.kept],
            worth=worth,
            checkpoint=self.checkpoint.digest,
            reason=self._reason(looked, dimension),
        )

    def odds(self, answers: Answers) -> Floats:
        """Returns the log-odds (b, k) that each answer is right by itself."""
        X = answer_rows(answers, self.agents)
        flat = X.reshape(X.shape[0] * X.shape[1], X.shape[2])  # -1 cannot be told where nothing is read of an answer
        return self._known(self._odds.run({ODDS_INPUT: flat})[ODDS].reshape(X.shape[:2]))

    def _known(self, values: NDArray[np.float32]) -> Floats:
        """Returns what a graph gave. Raises `ContractMismatch` where it is no number."""
        if not math.isfinite(np.add.reduce(values, axis=None)):
            raise ContractMismatch(f"{self.checkpoint.path} gives no number for an answer: take another one")
        return values.astype(np.float64)

    def classes_of(self, answers: Answers, odds: Floats) -> tuple[Classes, Floats]:
        """Returns the classes of b panels, and P(right) of each and of none, (b, c + 1)."""
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
            or not all(-ROUNDED <= value <= 1 + ROUNDED for value in values)
            or (self.exclusive and abs(sum(values) - 1) > ROUNDED * len(values))
        ):
            raise ContractMismatch(f"{self.checkpoint.path} gives no probability for each answer: take another one")
        if not self.exclusive:
            values[-1] = math.prod(1 - value for value in values[:-1])
        return values

    def gain(self, states: NDArray[np.float32]) -> Floats:
        """Returns by how much asking on is expected to raise P(right), (n,), from states (n, len(STATE)), or of several
        agents by asking each from their rows (n, len(ASK_STATE)). Raises `RecordError` where it knows no gain."""
        if self._gain is None:
            raise RecordError(
                f"{self.checkpoint.path} knows no gain of asking on: it learned from answers without costs"
            )
        return self._known(self._gain.run({GAIN_INPUT: states})[GAIN].ravel())

    def _read(
        self,
        one: object,
        agent: str | None,
        item: Item,
        same: Callable[[str], Hashable | None] | None,
        most: int,
        needs_call: bool,
    ) -> _Read:
        """Returns one answer, read. `agent`: who gave it, None for whom the answer names."""
        unknown = [math.nan] * len(self.agents.signals)
        try:
            answer = whole(one if isinstance(one, PanelAnswer) else answer_of(one))
        except InvalidResponse as error:
            return _Read("", None, unknown, "", f"cannot be read ({shown(error)})")
        except Exception as error:  # of an object that a caller made, which may raise anything where it is looked into
            return _Read("", None, unknown, "", f"cannot be read ({shown(told(error))})")
        try:
            answer, left_out = self._with_known_signals(answer, answer.agent if agent is None else agent)
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
        doubt = "; ".join(filter(None, [answer.note, other]))
        return _Read(answer.text, form, signals, answer.agent, note, doubt, calls, left_out)

    def _with_known_signals(self, answer: PanelAnswer, agent: str) -> tuple[PanelAnswer, str]:
        """Returns an answer with the numbers from the sources that the checkpoint learned from, and why others are left
        out. Raises `InvalidResponse` for numbers that are none."""
        notes = []
        if SCORE in self.agents.signals and answer.score is not None and answer.score_source != self.score_by:
            came = (
                f"of the question {answer.score_source[:80]!r}"
                if answer.score_source
                else "of no question that is named"
            )
            notes.append(f"the score is {came}, and the panel learned from {self.score_by!r}: it was left out")
            answer = replace(answer, score=None)
        if STATED in self.agents.signals:
            column = 0 if len(self.agents.names) == 1 else self.agents.agent(agent)
            name = self.agents.names[column] if column < len(self.agents.names) else None
            levels = self.agents.scales[column][self.agents.signals.index(STATED)]
            answer, why = with_learned_confidence(answer, source_for(self.sources, name), levels)
            notes += [why] if why else []
        return answer, "; ".join(notes)

    def _reason(self, looked: _Looked, dimension: str) -> str:
        read, n = looked.read, len(looked.read)
        notes = []
        if looked.kept < 0:
            notes.append("no answer can be read, so none is kept")
        elif n == 1:
            notes.append("one answer alone: nothing agrees or disagrees with it")
        if unread := [f"answer {place} {one.note}" for place, one in enumerate(read) if one.note]:
            more = f", and {len(unread) - 3} more" if len(unread) > 3 else ""
            notes.append(f"{len(unread)} of {n} answers count against all others: {'; '.join(unread[:3])}{more}")
        doubts = [one.doubt for one in read if one.doubt and one.form is not None]
        notes += [f"of {doubts.count(doubt)} answers: {doubt}" for doubt in list(dict.fromkeys(doubts))[:3]]
        compared = [one for one in read if one.form is not None]
        if not self.knows_calls and (called := sum(one.calls for one in compared)):
            notes.append(
                f"{called} answers call tools, and this checkpoint learned no tool calls: the most frequent answer is "
                "kept"
            )
            compared = [one for one in compared if not one.calls]
        left_out = [one.left_out for one in compared if one.left_out]
        notes += [f"of {left_out.count(why)} answers: {why}" for why in list(dict.fromkeys(left_out))[:3]]
        compared = [one for one in compared if not one.left_out]
        columns = zip(*(one.signals for one in compared), strict=True)
        missing = [sum(map(math.isnan, column)) for column in columns]
        if (most := max(missing, default=0)) > 0:
            name = self.agents.signals[missing.index(most)]
            what = {STATED: "stated confidence", SCORE: "score"}.get(name, "log-probabilities")
            if name == STATED and {*self.sources.values()} and {*self.sources.values()} <= {*FROM_LOGPROBS}:
                what = "log-probabilities"
            notes.append(f"{most} answers have no {what}, which this checkpoint reads")
        unnamed = {""} if len(self.agents.names) == 1 else set()  # samples of the one agent need not name it
        if self._models and (strange := sorted(set(looked.named) - self._models - unnamed)):
            learned = names_shown(sorted(self._models))
            notes.append(f"nothing is known of {names_shown(strange)}: the checkpoint learned from {learned}")
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
        dimension, question = _text("dimension", dimension), _text("question", question)
        request_id = _text("request_id", request_id)
        if isinstance(answers, PanelAnswer) or not isinstance(answers, Iterable):
            raise RecordError(f"answers came as {type(answers).__name__}; expected a list of PanelAnswer")
        if strange := [one for one in answers if not isinstance(one, PanelAnswer)]:
            raise RecordError(f"an answer came as {type(strange[0]).__name__}; expected PanelAnswer(text, agent)")
        named = _texts("agents", [one.agent for one in answers], "the name of each agent that was asked")
        setting = self.ask_plan(price=price, budget=budget).setting(draw_of(request_id or f"{dimension}\n{question}"))
        given = {name: self._dollars(name, one, dimension) for name, one in (prices or {}).items()}
        own = self.mean_prices(dimension) if given else {}
        if any(  # the curves do not hold at other prices; an agent that cannot be asked does not count
            math.isfinite(one) and name in own and abs(one - own[name]) > NEAR_PRICE * own[name]
            for name, one in given.items()
        ):
            assert self.asks is not None
            worth_of_dollar = self.asks.curves.implied_price(setting.cost) if price is None else float(price)
            way = ASK_BY_GAIN if self._gain is not None else ASK_BY_WORDS
            if self.asks.sure is not None and self.asks.sure.spread.any():
                way = PRICED
            setting = AskSetting(way, worth_of_dollar, tuple(range(len(self.agents.names))), (), 0.0, 0.0)
        item = self._item(question, choices, same) if answers or choices or same is not None else None
        looked = self._look(answers, named, dimension, item, same, needs_call) if answers and item else None
        known, gain = self._known_of(looked, question, given, dimension), None
        worth, names = {}, self.agents.names
        if setting.way == ASK_BY_GAIN:
            gain = self.gain(ask_rows_of(looked.state if looked else EMPTY_STATE, known)).tolist()
            worth = {names[agent]: gain[agent] - setting.price * known.price[agent] for agent in known.left}
        elif setting.way == PRICED:
            gain = known.worth(setting)
            worth = {names[agent]: gain[agent] for agent in known.left}
        column = next_agent(setting, known, gain)
        doubts = [self._reason(looked, dimension)] if looked else []
        if strangers := sorted(str(name) for name in given if name not in names):
            doubts.append(f"nothing is known of {names_shown(strangers)}, whose price was given")
        if column >= 0:
            reason = "; ".join(filter(None, [f"by {setting.way}", *doubts]))
            return PanelStep(names[column], worth, reason, known.chance[column])
        keep = looked.place if looked else None
        if looked and (last := kept_by(setting, known.answered, known.odds)) >= 0:
            keep = next(at for at, name in enumerate(named) if name == names[last] and looked.read[at].form is not None)
        expected = 0.0
        assert self.asks is not None
        if looked is not None and keep is not None:
            of, places = next((of, places) for of, places in looked.members.items() if keep in places)
            expected = self.asks.after.probability(looked.probability[of], sum(known.answered), len(places) - 1)
        why = f"by {setting.way}" if known.left else "nobody is left to ask"
        return PanelStep(None, worth, "; ".join(filter(None, [why, *doubts])), expected, keep)

    @property
    def always_stated(self) -> tuple[str, ...]:
        """The agents that stated how sure they are in training."""
        if STATED not in self.agents.signals:
            return ()
        known = np.isfinite(self.agents.levels[:-1, self.agents.signals.index(STATED), 0])
        return tuple(name for name, has in zip(self.agents.names, known.tolist(), strict=True) if has)

    def chances(self, answers: Sequence[PanelAnswer], *, dimension: str = "", question: str = "") -> dict[str, float]:
        """Returns P(right) of every agent: of those in `answers` by their answer alone, of others by the question.

        Raises `RecordError` where the checkpoint stores no way of asking.
        """
        self.ask_plan()
        named = [one.agent for one in answers]
        looked = self._look(answers, named, dimension, self._item(question, ())) if answers else None
        known = self._known_of(looked, question, {}, dimension)
        p = zip(self.agents.names, known.answered, known.odds, known.chance, strict=True)
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
        """Returns what is wrong with an agent's confidence from this source; empty where nothing is.

        `whole`: whether the source is the only one of a whole collection (`panel_sources.describe_mismatch`).
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

    def _dollars(self, name: str, given: object, dimension: str) -> float:
        """Returns a caller's price of an answer. Raises `RecordError` where it is no number of at least 0, or is of
        tokens and the checkpoint does not know how many the agent takes."""
        cost = given
        if isinstance(given, Price):
            if name not in self.agents.names:
                return 0.0  # it is not asked
            assert self.asks is not None
            prompt, completion = self.asks.tokens[:, self.agents.agent(name), self.agents.dimension(dimension)].tolist()
            if not math.isfinite(prompt + completion):
                raise RecordError(
                    f"the price of {name} is of tokens, and the checkpoint does not know how many it takes: give "
                    "dollars an answer, or train it on outcomes with prompt_tokens and completion_tokens"
                )
            cost = (prompt * given.prompt + completion * given.completion) / 1e6
        if isinstance(cost, bool) or not isinstance(cost, Real) or not float(cost) >= 0:
            raise RecordError(f"the price of {name} is {given!r}; expected US dollars an answer, at least 0")
        return float(cost)

    def mean_prices(self, dimension: str = "") -> dict[str, float]:
        """Returns US dollars an answer by agent, as the checkpoint learned them; empty where it learned none."""
        if self.asks is None:
            return {}
        at = self.agents.dimension(dimension)
        return dict(zip(self.agents.names, (self.asks.price[:, at] / 1000).tolist(), strict=True))

    def _known_of(self, looked: "_Looked | None", question: str, prices: Mapping[str, float], dimension: str) -> Asking:
        """Returns what is known of one question for whom to ask next."""
        assert self.asks is not None
        at, A = self.agents.dimension(dimension), len(self.agents.names)
        asked, answered, odds, form = [False] * A, [False] * A, [0.0] * A, [-1] * A
        if looked is not None:
            number = {place: of for of, places in looked.members.items() for place in places}
            for place, (column, own, one) in enumerate(zip(looked.agents, looked.odds, looked.read, strict=True)):
                if column < A:
                    asked[column] = True
                    if one.form is not None and not answered[column]:
                        answered[column], odds[column], form[column] = True, own, number[place]
        price, left = self.asks.price[:, at].tolist(), [agent for agent in range(A) if not asked[agent]]
        if prices:
            price = [1000 * prices.get(name, own) for name, own in self.mean_prices(dimension).items()]
            left = [agent for agent in left if math.isfinite(price[agent])]
        chance = _chance(self.asks, self.agents, question[-MOST_TEXT:], at)
        return Asking(asked, answered, left, odds, self.agents.usual[at][:A], chance, price, form, self.asks.sure)

    def stops(self, verdict: PanelVerdict, setting: Setting, answers: int, judged: int) -> bool:
        """Returns whether a setting of a plan stops after so many answers, of which `judged` came in a response."""
        counts = sorted((len(one.members) for one in verdict.classes), reverse=True)
        number = {place: at for at, one in enumerate(verdict.classes) for place in one.members}
        came = max(number, default=-1) + 1
        latest = [number.get(place, -1 - place) for place in range(came - 1, -1, -1)]
        row = next((at for at, one in enumerate(latest) if one != latest[0]), len(latest))
        seen = Seen(
            answers=answers,
            count=counts[0] if counts else 0,
            second=counts[1] if len(counts) > 1 else 0,
            row=row if came == judged else 0,
            score=verdict.score or 0.0,
            gain=next(iter(verdict.worth.values()), 0.0),
        )
        return setting.stops(seen)


@lru_cache(maxsize=64)
def _chance(asks: Asks, agents: Agents, question: str, dimension: int) -> list[float]:
    """Returns P(right) of each agent before anybody is asked, (A,). A question is looked at after every answer."""
    return list(chance_of(agents.rate[:, dimension], asks.words.shifts(question)).tolist())


def _is_whole(setting: Setting) -> bool:
    """Returns whether a setting of a checkpoint is one that can be: a known way, and numbers in their ranges."""
    known = setting.way in STOPS and np.isfinite((setting.threshold, setting.samples, setting.accuracy)).all()
    return bool(known and setting.samples >= 1 and 0 <= setting.accuracy <= 1)


def _graph(checkpoint: Checkpoint, name: str, given: str, width: int, output: str) -> GraphSession:
    """Returns a further graph of the checkpoint. Raises `ValueError` where it does not turn rows into a number each."""
    session = checkpoint.graphs[name]
    inputs = [(one.name, one.type, one.shape) for one in session.inputs]
    outputs = [(one.name, one.type, one.shape[1:]) for one in session.outputs]
    if inputs != [(given, "float32", (None, width))] or outputs != [(output, "float32", (1,))]:
        raise ValueError(f"{name} gives {outputs} for {inputs}")
    return session


def _text(name: str, given: object) -> str:
    """Returns a text; empty for None. Raises `RecordError` for anything else."""
    if given is not None and not isinstance(given, str):
        raise RecordError(f"{name} is a {type(given).__name__}; expected a text")
    return given or ""


def _texts(name: str, given: object, expected: str) -> tuple[str, ...]:
    """Returns the members of what was given; None is an empty text. Raises `RecordError` where one is no text."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise RecordError(f"{name} came as {type(given).__name__}; expected {expected}")
    members = list(given)
    for one in members:
        if one is not None and not isinstance(one, str):
            raise RecordError(f"{name} holds a {type(one).__name__}; expected {expected}")
    return tuple(str(one or "") for one in members)


def agents_json(agents: Agents) -> bytes:
    """Returns the bytes of agents.json; NaN as null."""
    levels = np.ma.masked_invalid(agents.levels).tolist()  # NaN is null
    record = {"names": agents.names, "dimensions": agents.dimensions, "rate": agents.rate.tolist()}
    return json.dumps({**record, "signals": agents.signals, "levels": levels, "leading": agents.leading}).encode()


def read_agents(data: bytes) -> Agents:
    """Returns what agents.json says. Raises `ValueError`, `KeyError` or `TypeError` where it is not whole."""
    record = json.loads(data)
    names, dimensions, signals = (tuple(map(str, record[key])) for key in ("names", "dimensions", "signals"))
    levels = np.array(record["levels"], dtype=np.float64).reshape(
        len(names) + 1, len(signals), QUANTILE_COUNT
    )  # null is NaN
    gone = np.isnan(levels)
    if not (gone | np.isfinite(levels)).all() or (np.diff(levels, axis=2) < 0).any():
        raise ValueError("the levels of a signal do not rise")
    if (gone.any(axis=2) != gone.all(axis=2)).any():
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
    return Agents(names, dimensions, rate, signals, levels, leading)
