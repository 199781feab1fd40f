"""Several answers to one question: which to keep, how sure, and whether one more is worth its price.

Needs NumPy and ONNX Runtime only. What is read of the answers, and the models' rows, is in `routing.panel_rows`; how
they are fitted in `training.recipes.panel`.
"""

import asyncio
import hashlib
import inspect
import json
import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Checkpoint, ContractMismatch, Pretrained, load_checkpoint
from metaprobe.checkpoints.checkpoint import check_kind
from metaprobe.checkpoints.display import explain_fields
from metaprobe.checkpoints.graph_session import GraphSession
from metaprobe.checkpoints.table import html_table
from metaprobe.probes.terms import terms
from metaprobe.records.answers import canonical, final_answer
from metaprobe.records.endings import REFUSAL, STOP, TOOL_CALL
from metaprobe.records.errors import InvalidResponse, NoLogprobs, RecordError
from metaprobe.records.logprobs import check_logprobs
from metaprobe.records.parse import parse_response, parse_text
from metaprobe.records.reading import fields
from metaprobe.records.response import ParsedResponse, ParsedText
from metaprobe.records.response import answer_of as cut_to_answer
from metaprobe.records.types import Item
from metaprobe.routing.panel_rows import (
    LEVELS,
    PICKS,
    SCORE,
    SIGNALS,
    STATE,
    STATED,
    Agents,
    Answers,
    Classes,
    Floats,
    answer_columns,
    answer_rows,
    class_columns,
    class_rows,
    pick,
    signals_of,
    state_rows,
)
from metaprobe.routing.panel_stops import STOPS, Plan, Seen, Setting, plan_of
from metaprobe.routing.same_answers import OVERLAP, number_classes, overlapping

KIND = "panel"
INPUT, PROBABILITY = "classes", "probability"
ODDS_GRAPH, GAIN_GRAPH, AGENTS = "answers.onnx", "gain.onnx", "agents.json"
ODDS_INPUT, ODDS = "answers", "odds"
GAIN_INPUT, GAIN = "state", "gain"
ROUNDED = 1e-5
"""By how much a probability may leave [0, 1] through rounding."""


@dataclass(frozen=True, slots=True)
class PanelAnswer:
    """One answer as a panel reads it, for callers that hold no response of an API."""

    text: str
    """What the agent answered."""
    agent: str = ""
    """Who answered."""
    logprobs: Sequence[float] | None = None
    """(T,) nats, of the answer's tokens; None where there are none."""
    stated: float | None = None
    """The confidence that the agent stated, on the scale of the training data."""
    score: float | None = None
    """A checkpoint's score of the answer."""
    cut: bool = False
    """Whether the answer did not end by itself. It then counts against every class."""


@explain_fields
@dataclass(frozen=True, slots=True)
class PanelClass:
    """Answers that are the same."""

    answer: str
    """The text of the surest of them."""
    probability: float
    """P(right)."""
    members: tuple[int, ...]
    """Places of the answers among those that were given, from 0."""


@explain_fields
@dataclass(frozen=True, slots=True, repr=False)
class PanelVerdict:
    """What a panel makes of several answers to one question."""

    classes: tuple[PanelClass, ...]
    """Each distinct answer, the likeliest first."""
    none: float
    """P(none of these is right)."""
    kept: int | None
    """Place of the answer to keep, the surest of its class; None where no answer can be read."""
    score: float | None
    """Calibrated P(right) of the kept answer, in [0, 1]; None where none is kept."""
    worth: dict[str, float]
    """Agent -> how much P(right) of the kept answer is expected to rise by asking on; empty where it is not known."""
    checkpoint: str
    """Digest of the checkpoint that gave it."""
    reason: str = ""
    """What makes the verdict doubtful, or why nothing is kept; empty where nothing does."""

    def __repr__(self) -> str:
        score = "None" if self.score is None else f"{self.score:.3f}"
        reason = f", reason={self.reason!r}" if self.reason else ""
        return f"PanelVerdict(kept={self.kept}, score={score}, classes={len(self.classes)}{reason})"

    def _repr_html_(self) -> str:
        """A table for notebooks."""
        rows = [(one.answer[:80], f"{one.probability:.3f}, {len(one.members)} answers") for one in self.classes]
        return html_table("Panel", [*rows, ("none of these", f"{self.none:.3f}"), ("reason", self.reason)])

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as types of JSON."""
        return asdict(self)


@explain_fields
@dataclass(frozen=True, slots=True)
class PanelAnswered:
    """What asking a model several times came to."""

    response: Any
    """The response to keep; None where none can be read."""
    verdict: PanelVerdict | None
    """The panel's verdict on all answers; None where none came."""
    responses: tuple[Any, ...]
    """All that came, in the order in which they came."""
    asked: int
    """Requests that were begun, those that failed or were cancelled among them."""
    setting: Setting
    """The way to stop that decided."""
    reason: str
    """What is doubtful, and what failed; empty for nothing."""


async def _create(client: Any, request: Mapping[str, Any]) -> Any:
    """Returns the response of one request. A client that is not asynchronous is called in a thread, which goes on where
    this is cancelled; an asynchronous one then never begins."""
    made = asyncio.ensure_future(asyncio.to_thread(client.chat.completions.create, **request))
    try:
        response = await asyncio.shield(made)
    except asyncio.CancelledError:
        made.add_done_callback(_close)
        raise
    return await response if inspect.isawaitable(response) else response


def _close(made: "asyncio.Future[Any]") -> None:
    """Closes the coroutine of a request that nobody waits for any more, so that it is not left half begun."""
    if not made.cancelled() and made.exception() is None and inspect.iscoroutine(made.result()):
        made.result().close()


@dataclass(frozen=True, slots=True, eq=False)
class _Read:
    """One answer, read; `form` is None where it cannot be compared with the others."""

    text: str
    form: Hashable | None
    signals: Floats
    agent: str
    note: str = ""


class Panel(Pretrained):
    """Judges several answers to one question. Several threads may share it.

    An example:

        >>> from metaprobe.train import train_panel
        >>> panel = Panel(train_panel("outcomes.jsonl", out="out/panel"))
        >>> verdict = panel.judge(["Paris", "Paris", "Lyon"], agents=["large", "small", "small"])
        >>> verdict.kept, len(verdict.classes), 0 < verdict.score < 1
        (0, 2, True)
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Raises `ContractMismatch` for a checkpoint of another kind, or whose parts do not fit each other."""
        manifest = checkpoint.manifest
        check_kind(checkpoint.path, manifest.kind, KIND)
        self.checkpoint = checkpoint
        try:
            contract = manifest.contract
            self.agents = read_agents(checkpoint.extra[AGENTS])
            self.same = str(contract["same"])
            self.exclusive = bool(contract["exclusive"])
            self.pick = str(contract["pick"])
            self.most = int(contract["most_answers"])
            self.settings = tuple(Setting(*one) for one in contract["stops"])
            if self.pick not in PICKS:
                raise ValueError(f"the pick is {self.pick!r}")
            if tuple(contract["columns"]) != class_columns(self.agents):
                raise ValueError("the columns are of another version")
            if any(
                one.way not in STOPS or not np.isfinite((one.threshold, one.samples, one.accuracy)).all()
                for one in self.settings
            ):
                raise ValueError("a way to stop is not known")
            self._odds = _graph(checkpoint, ODDS_GRAPH, ODDS_INPUT, len(answer_columns(self.agents)), ODDS)
            self._gain = (
                _graph(checkpoint, GAIN_GRAPH, GAIN_INPUT, len(STATE), GAIN) if GAIN_GRAPH in checkpoint.extra else None
            )
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError, RecursionError) as error:
            raise ContractMismatch(
                f"{checkpoint.path} is no whole panel ({error!r}); train it again with `metaprobe train panel`"
            ) from error

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, sha256: str | None = None) -> "Panel":
        """Returns the panel in a checkpoint folder, verified. `sha256`: the digest that its author gave you."""
        return cls(load_checkpoint(path, sha256=sha256))

    def judge(
        self,
        responses: object,
        *,
        agents: Sequence[str] | None = None,
        dimension: str = "",
        question: str = "",
        choices: Sequence[str] = (),
        same: Callable[[str], Hashable | None] | None = None,
    ) -> PanelVerdict:
        """Returns which answer to keep, and how sure it is. Never raises for what an answer holds: the reason says it.

        `responses`: a sequence of responses in any format of `parse_response`, of texts or of `PanelAnswer`; or one
        response with several choices. `agents`: who gave each, by default the model that the response names.
        `dimension`, `question`, `choices`: of the question, where they are known; options are read by them.
        `same`: returns a form in which equal answers are equal, None for no answer; by default as in training.
        Raises `RecordError` where there is no response, or another number of agents.
        """
        given = responses_in(responses)
        if not given:
            raise RecordError("no response came; expected at least one answer to judge")
        if agents is not None and len(agents) != len(given):
            raise RecordError(f"{len(agents)} agents were named for {len(given)} answers; expected one for each")
        item = Item("", question, check=self.same if self.same in CHECKS else "none", choices=tuple(choices))  # type: ignore[arg-type]
        read = [self._read(one, item, same) for one in given]
        named = [one.agent for one in read] if agents is None else list(agents)
        return self._judge(read, named, dimension, by_words=same is None and self.same == OVERLAP)

    def _judge(self, read: Sequence[_Read], named: Sequence[str], dimension: str, *, by_words: bool) -> PanelVerdict:
        forms = [one.form for one in read]
        numbers = overlapping(forms) if by_words else number_classes(forms)  # type: ignore[arg-type]
        who = self._who(named)
        raw = np.stack([one.signals for one in read])[None]
        columns = np.array([[who[name] for name in named]])
        answers = Answers(
            form=np.array([numbers]),
            agent=columns,
            dimension=np.array([self.agents.dimension(dimension)]),
            scaled=self.agents.scaled(raw, columns),
            present=np.ones((1, len(read)), dtype=bool),
        )
        odds = self.odds(answers)
        table, p = self.classes(answers, odds)
        kept = int(pick(self.pick, answers, table, p, self.agents)[0])
        classes = [
            PanelClass(
                answer=read[members[int(np.argmax(odds[0, members]))]].text,
                probability=float(p[0, number]),
                members=tuple(members),
            )
            for number in range(int(table.there.sum()))
            if (members := [place for place, one in enumerate(numbers) if one == number])
        ]
        worth = {}
        if self._gain is not None:
            worth = {self.agents.names[0]: float(self.gain(state_rows(table, p, np.array([kept])))[0])}
        score = None if kept < 0 else float(p[0, kept])
        members = [] if kept < 0 else [place for place, one in enumerate(numbers) if one == kept]
        return PanelVerdict(
            classes=tuple(sorted(classes, key=lambda one: -one.probability)),
            none=float(p[0, -1]),
            kept=None if kept < 0 else members[int(np.argmax(odds[0, members]))],
            score=score,
            worth=worth,
            checkpoint=self.checkpoint.digest,
            reason=self._reason(read, named, dimension, kept),
        )

    def odds(self, answers: Answers) -> Floats:
        """Returns the log-odds (b, k) that each answer is right by itself."""
        X = answer_rows(answers, self.agents)
        return self._odds.run({ODDS_INPUT: X.reshape(-1, X.shape[2])})[ODDS].reshape(X.shape[:2]).astype(np.float64)

    def classes(self, answers: Answers, odds: Floats) -> tuple[Classes, Floats]:
        """Returns the classes of b panels, and P(right) of each and of none, (b, c + 1)."""
        table = class_rows(answers, odds, self.agents, exclusive=self.exclusive)
        p = np.zeros(table.rows.shape[:2])
        for panel, there in enumerate(table.there):  # the classes of one panel share a softmax
            if not there.any():
                p[panel, -1] = 1.0
                continue
            legal = np.append(there, True)
            rows = table.rows[panel][legal]
            values = self.checkpoint.run({INPUT: rows})[PROBABILITY].ravel()
            if values.shape != (len(rows),) or not (values.min() >= -ROUNDED and values.max() <= 1 + ROUNDED):
                raise ContractMismatch(f"{self.checkpoint.path} gives no probability for each answer: take another one")
            p[panel, legal] = values
            if not self.exclusive:
                p[panel, -1] = np.prod(1 - p[panel, :-1])
        return table, p

    def gain(self, states: NDArray[np.float32]) -> Floats:
        """Returns by how much asking on is expected to raise P(right), (n,), from states (n, len(STATE)). Raises
        `RecordError` where the checkpoint is of several agents."""
        if self._gain is None:
            raise RecordError(
                f"{self.checkpoint.path} is of several agents, and knows no gain of asking one of them on"
            )
        return self._gain.run({GAIN_INPUT: states})[GAIN].ravel().astype(np.float64)

    def _who(self, named: Sequence[str]) -> dict[str, int]:
        """Returns the column of each agent; where all answers are of one, whatever its name, that of the only one."""
        one_only = len(self.agents.names) == 1
        return {name: 0 if one_only else self.agents.agent(name) for name in dict.fromkeys(named)}

    def _read(self, one: object, item: Item, same: Callable[[str], Hashable | None] | None) -> _Read:
        unknown = np.full(len(self.agents.signals), np.nan)
        try:
            answer = one if isinstance(one, PanelAnswer) else answer_of(one)
            signals = signals_in(answer, self.agents.signals)
        except InvalidResponse as error:
            return _Read("", None, unknown, "", f"cannot be read ({error})")
        if answer.cut:
            return _Read(answer.text, None, signals, answer.agent, "did not end by itself")
        form: Hashable | None
        if same is not None:
            form = same(answer.text)
        elif self.same == OVERLAP:
            form = answer.text if answer.text.strip() else None
        else:
            form = canonical(item, final_answer(item, answer.text)) or None
        return _Read(answer.text, form, signals, answer.agent, "" if form is not None else "holds no answer")

    def _reason(self, read: Sequence[_Read], named: Sequence[str], dimension: str, kept: int) -> str:
        n = len(read)
        notes = []
        if kept < 0:
            notes.append("no answer can be read, so none is kept")
        elif n == 1:
            notes.append("one answer alone: nothing agrees or disagrees with it")
        if unread := [f"answer {place} {one.note}" for place, one in enumerate(read) if one.note]:
            more = f", and {len(unread) - 3} more" if len(unread) > 3 else ""
            notes.append(f"{len(unread)} of {n} answers count against all others: {'; '.join(unread[:3])}{more}")
        readable = [one.signals for one in read if one.form is not None]
        missing = np.isnan(readable).sum(axis=0) if readable else np.zeros(0)
        if missing.any():
            name = self.agents.signals[int(missing.argmax())]
            what = {STATED: "stated confidence", SCORE: "score"}.get(name, "log-probabilities")
            notes.append(f"{missing.max()} answers have no {what}, which this checkpoint reads")
        if len(self.agents.names) > 1 and (strange := sorted(set(named) - set(self.agents.names))):
            notes.append(f"nothing is known of {', '.join(name or 'an unnamed agent' for name in strange)}")
        elif len(self.agents.names) == 1:
            others = mismatch_of(self.checkpoint, named)
            notes += [others] if others else []
        if dimension and self.agents.dimensions and dimension not in self.agents.dimensions:
            notes.append(f"the dimension {dimension!r} was not learned from")
        if n > self.most:
            notes.append(f"{n} answers came, and this checkpoint learned from at most {self.most} of a question")
        return "; ".join(notes)

    def plan(self, *, price: float | None = None, samples: float | None = None) -> Plan:
        """Returns when to stop asking, from the checkpoint's own curves.

        `price`: how much P(right) each further answer must bring; `samples`: the mean number of answers to spend. By
        default the fewest that come within 0.005 of the best accuracy. Raises `RecordError` where both are given, or
        the checkpoint is of several agents, for which it stores no curves.
        """
        if not self.settings:
            raise RecordError(f"{self.checkpoint.path} stores no curves of stopping: it is of several agents")
        return plan_of(self.settings, price=price, samples=samples)

    async def ask(
        self,
        client: Any,
        messages: Sequence[Mapping[str, Any]],
        *,
        model: str,
        at_most: int = 16,
        price: float | None = None,
        samples: float | None = None,
        at_once: int = 2,
        dimension: str = "",
        choices: Sequence[str] = (),
        same: Callable[[str], Hashable | None] | None = None,
        **request: Any,
    ) -> "PanelAnswered":
        """Asks one model for answers until another one is not worth its price, and returns which to keep.

        `client`: of the package openai, asynchronous or not, or any other with `chat.completions.create`. `at_most`:
        requests, those that fail among them; `at_once`: how many are under way together. When it stops, what is still
        under way is cancelled. `price` and `samples` are as for `plan`, `dimension`, `choices` and `same` as for
        `judge`; `request` is handed on (temperature, max_tokens, ...), with log-probabilities asked for.

        Never raises for a request that fails: it costs an answer, and the reason says it. Raises `RecordError` for
        `at_most` or `at_once` below 1, and as `plan`.
        """
        if at_most < 1 or at_once < 1:
            raise RecordError(f"at_most={at_most}, at_once={at_once}; expected numbers of at least 1")
        asked = {"messages": list(messages), "model": model, "logprobs": True, **request}
        setting = self.plan(price=price, samples=samples).setting(
            draw_of(json.dumps(asked, sort_keys=True, default=str))
        )
        last = messages[-1].get("content") if messages else ""
        named: dict[str, Any] = {
            "dimension": dimension,
            "question": last if isinstance(last, str) else "",
            "choices": choices,
            "same": same,
        }
        responses: list[Any] = []
        failures: list[str] = []
        verdict: PanelVerdict | None = None
        begun = 0
        pending: set[asyncio.Task[Any]] = set()
        try:
            while True:
                while begun < at_most and len(pending) < at_once:
                    pending.add(asyncio.ensure_future(_create(client, asked)))
                    begun += 1
                if not pending:
                    break
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if (error := task.exception()) is not None:
                        failures.append(f"{type(error).__name__}: {error}")
                    else:
                        responses.append(task.result())
                if responses:
                    verdict = self.judge(responses, **named)
                    if self.stops(verdict, setting, len(responses) + len(failures), len(responses)):
                        break
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
        failed = f"{len(failures)} of {begun} requests failed ({failures[0][:200]})" if failures else ""
        reason = "; ".join(filter(None, [verdict.reason if verdict else "no answer came", failed]))
        kept = None if verdict is None or verdict.kept is None else responses[verdict.kept]
        return PanelAnswered(kept, verdict, tuple(responses), begun, setting, reason)

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


def _graph(checkpoint: Checkpoint, name: str, given: str, width: int, output: str) -> GraphSession:
    """Returns a further graph of the checkpoint. Raises `ValueError` where it does not turn rows into a number each."""
    session = GraphSession(checkpoint.extra[name], kind=KIND)
    inputs = [(one.name, one.type, one.shape) for one in session.inputs]
    outputs = [(one.name, one.type, one.shape[1:]) for one in session.outputs]
    if inputs != [(given, "float32", (None, width))] or outputs != [(output, "float32", (1,))]:
        raise ValueError(f"{name} gives {outputs} for {inputs}")
    return session


CHECKS = ("number", "choice", "exact", "function")
"""Checks of `Item` by which answers are compared: the same number, option, text or code."""


def mismatch_of(checkpoint: Checkpoint, named: Sequence[str]) -> str:
    """Returns what a verdict must say where the answers are of other models than the checkpoint learned from."""
    generator = checkpoint.manifest.generator
    strange = sorted({name for name in named if name and generator is not None and name not in generator.models})
    if not strange:
        return ""
    learned = ", ".join(generator.models) if generator is not None else ""
    return f"the answers are of {', '.join(strange)}, and the checkpoint learned from {learned}"


def responses_in(given: object) -> list[object]:
    """Returns the single answers in what was given: the choices of one response, or the members of a sequence."""
    if isinstance(given, str | bytes | PanelAnswer | Mapping) or not isinstance(given, Iterable) or _choices(given):
        given = [given]
    answers: list[object] = []
    for one in given:
        count = 0 if isinstance(one, str | PanelAnswer | InvalidResponse) else _choices(one)
        answers += [(one, choice) for choice in range(count)] if count > 1 else [one]
    return answers


def _choices(response: object) -> int:
    """Returns how many choices a response holds, 0 where it is not a completion."""
    held = fields(response)
    choices = held.get("choices") if held is not None else None
    return len(choices) if isinstance(choices, list) else 0


def answer_of(given: object) -> PanelAnswer:
    """Returns the answer in a response, or in a (response, choice). Raises `InvalidResponse` where there is none."""
    if isinstance(given, InvalidResponse):
        raise given
    response, choice = given if isinstance(given, tuple) and len(given) == 2 else (given, 0)
    if isinstance(response, str):
        return PanelAnswer(response)
    parsed: ParsedResponse | ParsedText
    logprobs = None
    try:
        parsed = cut_to_answer(parse_response(response, choice=choice, top=False))
        logprobs = parsed.logprobs
    except NoLogprobs:
        parsed = parse_text(response, choice=choice)
    if parsed.finish_reason in (REFUSAL, TOOL_CALL):
        raise InvalidResponse(f"it is a {parsed.finish_reason.replace('_', ' ')}; expected an answer")
    cut = parsed.finish_reason not in ("", STOP)
    return PanelAnswer(parsed.text, parsed.model, None if logprobs is None else logprobs.tolist(), cut=cut)


def signals_in(answer: PanelAnswer, names: Sequence[str]) -> Floats:
    """Returns the signals (S,) of an answer, NaN where one is missing. Raises `InvalidResponse` for log-probabilities
    that are no numbers."""
    numbers = None
    if answer.logprobs is not None and len(answer.logprobs):
        numbers = terms(check_logprobs(answer.logprobs)[None])[0].tolist()
    return signals_of(numbers, answer.stated, answer.score, names)


def agents_json(agents: Agents) -> bytes:
    """Returns the bytes of agents.json; NaN as null."""
    record = {
        "names": agents.names,
        "dimensions": agents.dimensions,
        "rate": agents.rate.tolist(),
        "signals": agents.signals,
        "levels": [
            [[None if np.isnan(value) else value for value in row] for row in agent] for agent in agents.levels.tolist()
        ],
        "leading": agents.leading,
    }
    return json.dumps(record).encode()


def read_agents(data: bytes) -> Agents:
    """Returns what agents.json says. Raises `ValueError`, `KeyError` or `TypeError` where it is not whole."""
    record = json.loads(data)
    names, dimensions, signals = (tuple(map(str, record[key])) for key in ("names", "dimensions", "signals"))
    levels = np.array(
        [[[np.nan if value is None else float(value) for value in row] for row in agent] for agent in record["levels"]]
    ).reshape(len(names) + 1, len(signals), LEVELS)
    if not (np.isnan(levels) | np.isfinite(levels)).all() or (np.diff(levels, axis=2) < 0).any():
        raise ValueError("the levels of a signal do not rise")
    if len(set(names)) < len(names) or len(set(signals)) < len(signals) or not set(signals) <= set(SIGNALS):
        raise ValueError(f"the agents are {names} and their signals {signals}")
    rate = np.array(record["rate"], dtype=np.float64)
    if rate.shape != (len(names), len(dimensions) + 1) or not np.isfinite(rate).all():
        raise ValueError(f"the rates have shape {rate.shape}")
    leading = str(record["leading"])
    if leading and leading not in signals:
        raise ValueError(f"the leading signal is {leading!r}")
    return Agents(names, dimensions, rate, signals, levels, leading)


def draw_of(request: str) -> float:
    """Returns a number in [0, 1) that follows from a request's id, so that a retry decides alike."""
    return int.from_bytes(hashlib.sha256(request.encode()).digest()[:8]) / 2**64
