"""Several answers to one question: which to keep, how sure, and whether one more is worth its price.

Needs NumPy and ONNX Runtime only. What is read of the answers, and the models' rows, is in `routing.panel_rows`; how
they are fitted in `training.recipes.panel`.
"""

import asyncio
import hashlib
import inspect
import json
import os
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass, replace
from numbers import Real
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Checkpoint, ContractMismatch, Pretrained, load_checkpoint
from metaprobe.checkpoints.checkpoint import check_kind
from metaprobe.checkpoints.display import explain_fields
from metaprobe.checkpoints.graph_session import GraphSession
from metaprobe.checkpoints.table import html_table
from metaprobe.probes.contract import mismatch
from metaprobe.probes.terms import terms
from metaprobe.records.answers import canonical, final_answer
from metaprobe.records.endings import REFUSAL, STOP, TOOL_CALL, UNSTATED
from metaprobe.records.errors import InvalidResponse, NoLogprobs, RecordError
from metaprobe.records.logprobs import check_logprobs
from metaprobe.records.parse import parse_response, parse_text
from metaprobe.records.reading import each, fields, without_surrogates
from metaprobe.records.response import ParsedResponse, ParsedText, first_of
from metaprobe.records.response import answer_of as cut_to_answer
from metaprobe.records.types import Item, LogprobsMode
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
from metaprobe.routing.panel_stops import GAIN as ASKED_ON
from metaprobe.routing.panel_stops import STOPS, Plan, Seen, Setting, plan_of
from metaprobe.routing.same_answers import OVERLAP, number_classes, overlapping

KIND = "panel"
INPUT, PROBABILITY = "classes", "probability"
ODDS_GRAPH, GAIN_GRAPH, AGENTS = "answers.onnx", "gain.onnx", "agents.json"
ODDS_INPUT, ODDS = "answers", "odds"
GAIN_INPUT, GAIN = "state", "gain"
ROUNDED = 1e-5
"""By how much a probability may leave [0, 1] through rounding."""
MOST_TOGETHER = 1024
"""Answers to one question that are judged: each is held against every class."""
MOST_TEXT, MOST_TEXT_TOGETHER = 100_000, 1 << 20
"""Characters of an answer that are compared with others, and of all answers to one question, each its share of them. To
find the answer in a text takes up to 20 us a character. Of a longer question the end is read."""
MOST_OPTIONS = 128
MOST_TOLD, MOST_NAMED = 200, 5
"""Characters of what went wrong that a reason holds, and agents that it names."""
MOST_SETTINGS = 1000
"""Ways to stop that a checkpoint may store; a trainer writes a few."""


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
    note: str = ""
    """What is doubtful of it, which a verdict says; empty for nothing."""
    logprobs_mode: LogprobsMode = "unknown"
    """Whether the log-probabilities are `raw` (before temperature and truncation) or `processed` (after them)."""


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

    def create() -> Any:
        try:
            return client.chat.completions.create(**request)
        except StopIteration as error:  # which no future can hold: whoever waits for it would wait for ever
            raise RuntimeError("the client raised StopIteration") from error

    made = asyncio.ensure_future(asyncio.to_thread(create))
    try:
        response = await asyncio.shield(made)
    except asyncio.CancelledError:
        made.add_done_callback(_close)
        raise
    return await response if inspect.isawaitable(response) else response


def _told(error: BaseException) -> str:
    """Returns what went wrong in a few words, whatever the error's own text does."""
    try:
        return f"{type(error).__name__}: {error}"[:MOST_TOLD]
    except Exception:
        return type(error).__name__


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
    """Why it counts against all others."""
    doubt: str = ""
    """What is doubtful of an answer that is compared."""


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
            self.same, self.exclusive, self.pick = contract["same"], contract["exclusive"], contract["pick"]
            self.most = contract["most_answers"]
            self.settings = tuple(Setting(*one) for one in contract["stops"][: MOST_SETTINGS + 1])
            if self.pick not in PICKS or self.same not in (*CHECKS, "none", OVERLAP):
                raise ValueError(f"the pick is {self.pick!r}, and answers are the same by {self.same!r}")
            if type(self.exclusive) is not bool or type(self.most) is not int or self.most < 1:
                raise ValueError(f"exclusive is {self.exclusive!r}, and most_answers {self.most!r}")
            if tuple(contract["columns"]) != class_columns(self.agents):
                raise ValueError("the columns are of another version")
            if len(self.settings) > MOST_SETTINGS or not all(map(_is_whole, self.settings)):
                raise ValueError("a way to stop is not known")
            one_agent = len(self.agents.names) == 1
            if not one_agent and (self.settings or GAIN_GRAPH in checkpoint.extra):
                raise ValueError("ways to stop are stored of several agents")
            if GAIN_GRAPH not in checkpoint.extra and any(one.way == ASKED_ON for one in self.settings):
                raise ValueError("a way to stop goes by a gain, and none is stored")
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
        agents: Sequence[str | None] | None = None,
        dimension: str | None = "",
        question: str | None = "",
        choices: Sequence[str] | None = (),
        same: Callable[[str], Hashable | None] | None = None,
    ) -> PanelVerdict:
        """Returns which answer to keep, and how sure it is. Never raises for what an answer holds: the reason says it.

        `responses`: a sequence of responses in any format of `parse_response`, of texts or of `PanelAnswer`; or one
        response with several choices. `agents`: who gave each, by default the model that the response names.
        `dimension`, `question`, `choices`: of the question, where they are known; options are read by them.
        `same`: returns a form in which equal answers are equal, None for no answer; by default as in training.
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
        [dimension] = _texts("dimension", [dimension], "a text")
        [question] = _texts("question", [question], "a text")
        options = _texts("choices", () if choices is None else choices, "the texts of the options")
        if same is not None and not callable(same):
            raise RecordError(f"same is a {type(same).__name__}; expected a function of an answer's text")
        if len(options) > MOST_OPTIONS or sum(map(len, options)) > MOST_TEXT:
            raise RecordError(f"{len(options)} choices came; expected at most {MOST_OPTIONS}, of few words each")
        check = self.same if self.same in CHECKS else "none"
        item = Item("", question[-MOST_TEXT:], check=check, choices=options)  # type: ignore[arg-type]
        read = [self._read(one, item, same, MOST_TEXT_TOGETHER // len(given)) for one in given]
        named = [one.agent for one in read] if agents is None else agents
        verdict = self._judge(read, named, dimension, by_words=same is None and self.same == OVERLAP)
        if len(question) <= MOST_TEXT:
            return verdict
        long = f"of the {len(question)} characters of the question the last {MOST_TEXT} were read"
        return replace(verdict, reason="; ".join(filter(None, [verdict.reason, long])))

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
        held: dict[int, list[int]] = {}
        for place, number in enumerate(numbers):
            if number >= 0:
                held.setdefault(number, []).append(place)
        classes = [
            PanelClass(
                answer=read[members[int(np.argmax(odds[0, members]))]].text,
                probability=float(p[0, number]),
                members=tuple(members),
            )
            for number, members in held.items()
        ]
        worth = {}
        if self._gain is not None:
            worth = {self.agents.names[0]: float(self.gain(state_rows(table, p, np.array([kept])))[0])}
        score = None if kept < 0 else float(p[0, kept])
        members = held.get(kept, [])
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
        flat = X.reshape(X.shape[0] * X.shape[1], X.shape[2])  # -1 cannot be told where nothing is read of an answer
        return self._known(self._odds.run({ODDS_INPUT: flat})[ODDS].reshape(X.shape[:2]).astype(np.float64))

    def _known(self, values: Floats) -> Floats:
        """Returns what a graph gave. Raises `ContractMismatch` where it is no number."""
        if not np.isfinite(values).all():
            raise ContractMismatch(f"{self.checkpoint.path} gives no number for an answer: take another one")
        return values

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
            total = float(values.sum()) if self.exclusive else 1.0
            if (
                values.shape != (len(rows),)
                or not (values.min() >= -ROUNDED and values.max() <= 1 + ROUNDED)
                or abs(total - 1) > ROUNDED * len(rows)
            ):
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
        return self._known(self._gain.run({GAIN_INPUT: states})[GAIN].ravel().astype(np.float64))

    def _who(self, named: Sequence[str]) -> dict[str, int]:
        """Returns the column of each agent; where all answers are of one, whatever its name, that of the only one."""
        one_only = len(self.agents.names) == 1
        return {name: 0 if one_only else self.agents.agent(name) for name in dict.fromkeys(named)}

    def _read(self, one: object, item: Item, same: Callable[[str], Hashable | None] | None, most: int) -> _Read:
        unknown = np.full(len(self.agents.signals), np.nan)
        try:
            answer = whole(one if isinstance(one, PanelAnswer) else answer_of(one))
        except InvalidResponse as error:
            return _Read("", None, unknown, "", f"cannot be read ({_shown(error)})")
        except Exception as error:  # of an object that a caller made, which may raise anything where it is looked into
            return _Read("", None, unknown, "", f"cannot be read ({_shown(_told(error))})")
        try:
            signals = signals_in(answer, self.agents.signals)
            form, note = form_of(answer, item, self.same, same, most)
        except InvalidResponse as error:
            return _Read(answer.text, None, unknown, answer.agent, f"cannot be read ({_shown(error)})")
        except Exception as error:  # of a caller's own idea of the same
            return _Read(answer.text, None, unknown, answer.agent, f"cannot be compared ({_shown(_told(error))})")
        generator, mode = self.checkpoint.manifest.generator, answer.logprobs_mode
        other = mismatch(generator, model="", logprobs_mode=mode, on_mismatch="note", stacklevel=1)
        doubt = "; ".join(filter(None, [answer.note, other if answer.logprobs is not None else ""]))
        return _Read(answer.text, form, signals, answer.agent, note, doubt)

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
        doubts = [one.doubt for one in read if one.doubt and one.form is not None]
        notes += [f"of {doubts.count(doubt)} answers: {doubt}" for doubt in list(dict.fromkeys(doubts))[:3]]
        missing = np.isnan(readable).sum(axis=0) if readable else np.zeros(0)
        if missing.any():
            name = self.agents.signals[int(missing.argmax())]
            what = {STATED: "stated confidence", SCORE: "score"}.get(name, "log-probabilities")
            notes.append(f"{missing.max()} answers have no {what}, which this checkpoint reads")
        generator = self.checkpoint.manifest.generator
        known = {*self.agents.names, *(generator.models if generator else ())} - {""}
        unnamed = {""} if len(self.agents.names) == 1 else set()  # samples of the one agent need not name it
        if known and (strange := sorted(set(named) - known - unnamed)):
            learned = names_shown(sorted(known))
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
        requests, those that fail among them, and never more than the answers to a question that the checkpoint learned
        from. `at_once`: how many are under way together; when it stops, they are cancelled. Each request is of one
        whole answer: without `n` and `stream`. `price` and `samples` are as for `plan`, `dimension`, `choices` and
        `same` as for `judge`; `request` is handed on (temperature, max_tokens, ...), with log-probabilities asked for.

        Never raises for a request that fails: it costs an answer, and the reason says it. Raises `RecordError` for
        `at_most` or `at_once` that are no counts of at least 1, for `n` or `stream`, and as `plan` and `judge`.
        """
        if not all(type(count) is int and count >= 1 for count in (at_most, at_once)) or at_most > MOST_TOGETHER:
            raise RecordError(f"at_most={at_most!r}, at_once={at_once!r}; expected counts from 1 to {MOST_TOGETHER}")
        if request.get("n") not in (None, 1) or request.get("stream"):
            raise RecordError("n or stream was given; each request is of one whole answer: leave both out")
        if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
            raise RecordError(f"messages came as {type(messages).__name__}; expected a list of role and content")
        asked = {"messages": list(messages), "model": model, "logprobs": True, **request}
        setting = self.plan(price=price, samples=samples).setting(draw_of(_identity(asked)))
        named: dict[str, Any] = {
            "dimension": dimension,
            "question": _question_in(asked["messages"]),
            "choices": choices,
            "same": same,
        }
        self.judge([""], **named)  # what is wrong with these is told before anything is paid for
        responses: list[Any] = []
        failures: list[str] = []
        verdict: PanelVerdict | None = None
        begun = 0
        pending: set[asyncio.Task[Any]] = set()
        try:
            while True:
                while begun < min(at_most, self.most) and len(pending) < at_once:
                    pending.add(asyncio.ensure_future(_create(client, asked)))
                    begun += 1
                if not pending:
                    break
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if task.cancelled():
                        failures.append("CancelledError: the client gave the request up")
                    elif (error := task.exception()) is not None:
                        failures.append(_told(error))
                    else:
                        responses.append(task.result())
                if responses:
                    verdict = self.judge([(one, 0) for one in responses], **named)  # one answer of each request
                    if self.stops(verdict, setting, len(responses) + len(failures), len(responses)):
                        break
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
        failed = f"{len(failures)} of {begun} requests failed ({failures[0]})" if failures else ""
        said = [verdict.reason if verdict else "no answer came", str(without_surrogates(failed))]
        reason = "; ".join(filter(None, said))
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


def _is_whole(setting: Setting) -> bool:
    """Returns whether a setting of a checkpoint is one that can be: a known way, and numbers in their ranges."""
    known = setting.way in STOPS and np.isfinite((setting.threshold, setting.samples, setting.accuracy)).all()
    return bool(known and setting.samples >= 1 and 0 <= setting.accuracy <= 1)


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


def names_shown(names: Sequence[str]) -> str:
    """Returns names for a reason: the first few, each cut."""
    more = [f"{len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
    return ", ".join([name[:80] or "an unnamed agent" for name in names[:MOST_NAMED]] + more)


def form_of(
    answer: PanelAnswer,
    item: Item,
    by: str,
    same: Callable[[str], Hashable | None] | None = None,
    most: int = MOST_TEXT,
) -> tuple[Hashable | None, str]:
    """Returns a form in which equal answers are equal, and why there is none: None where the answer counts against all.

    `by`: a check of `Item`, or `OVERLAP`; `same`: a caller's own idea of it. `most`: characters that are compared.
    """
    most = min(most, MOST_TEXT)
    if answer.cut:
        return None, "did not end by itself"
    if len(answer.text) > most:
        return None, f"has {len(answer.text)} characters, and at most {most} are compared"
    form: Hashable | None
    if same is not None:
        form = same(answer.text)
        hash(form)
        if form != form:  # as of NaN, which is equal to nothing
            form = None
    elif by == OVERLAP:
        form = answer.text if answer.text.strip() else None
    else:
        form = canonical(item, final_answer(item, answer.text)) or None
    return form, "" if form is not None else "holds no answer"


def whole(answer: PanelAnswer) -> PanelAnswer:
    """Returns the answer with plain texts. Raises `InvalidResponse` where it holds none."""
    if not isinstance(answer.text, str):
        raise InvalidResponse(f"the text is a {type(answer.text).__name__}; expected a string")
    if not isinstance(answer.agent, str | None):
        raise InvalidResponse(f"the agent is a {type(answer.agent).__name__}; expected a name")
    text, agent = (str(without_surrogates(str(one or ""))) for one in (answer.text, answer.agent))
    return replace(answer, text=text, agent=agent, cut=bool(answer.cut))


def _shown(error: object) -> str:
    text = str(error)
    return text if len(text) <= MOST_TOLD else text[: MOST_TOLD - 3] + "..."


def _texts(name: str, given: object, expected: str) -> tuple[str, ...]:
    """Returns the members of what was given; None is an empty text. Raises `RecordError` where one is no text."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise RecordError(f"{name} came as {type(given).__name__}; expected {expected}")
    members = list(given)
    for one in members:
        if one is not None and not isinstance(one, str):
            raise RecordError(f"{name} holds a {type(one).__name__}; expected {expected}")
    return tuple(str(one or "") for one in members)


def _question_in(messages: Sequence[Any]) -> str:
    """Returns the text of the last message; empty where it has none."""
    said = (fields(messages[-1]) or {}).get("content") if messages else ""
    parts = [said] if isinstance(said, str) else [part.get("text") for part in each(said)]
    return "\n".join(part for part in parts if isinstance(part, str))


def _identity(request: Mapping[str, Any]) -> str:
    """Returns a text that is the same for the same request; of one that JSON cannot hold, that of its names alone."""
    try:
        return json.dumps(request, sort_keys=True, default=str)
    except Exception:  # of an object that a caller made
        return json.dumps(sorted(request))


def responses_in(given: object) -> list[object]:
    """Returns the single answers in what was given: the choices of one response, or the members of a sequence.

    At most one more than `MOST_TOGETHER` of them. Raises `RecordError` for a sequence that breaks off.
    """
    if isinstance(given, str | bytes | PanelAnswer | Mapping) or not isinstance(given, Iterable) or _choices(given):
        given = [given]
    answers: list[object] = []
    try:
        for one in given:
            count = 0 if isinstance(one, str | PanelAnswer | InvalidResponse) else _choices(one)
            answers += [(one, choice) for choice in range(min(count, MOST_TOGETHER + 1))] if count > 1 else [one]
            if len(answers) > MOST_TOGETHER:
                break
    except Exception as error:
        raise RecordError(f"the answers cannot be told apart ({_told(error)}); expected a list of them") from error
    return answers[: MOST_TOGETHER + 1]


def _choices(response: object) -> int:
    """Returns how many choices a response holds, 0 where it is not a completion."""
    try:
        held = fields(response)
        choices = held.get("choices") if held is not None else None
        return len(choices) if isinstance(choices, list) else 0
    except Exception:  # of an object that a caller made: it is one answer, which cannot be read
        return 0


def answer_of(given: object) -> PanelAnswer:
    """Returns the answer in a response, or in a (response, choice). Raises `InvalidResponse` where there is none."""
    if isinstance(given, InvalidResponse):
        raise given
    response, choice = given if _is_choice(given) else (given, 0)
    if isinstance(response, str):
        return PanelAnswer(response)
    if isinstance(response, PanelAnswer):
        return response
    parsed: ParsedResponse | ParsedText
    logprobs = None
    try:
        parsed = cut_to_answer(parse_response(response, choice=choice, top=False))
        logprobs = parsed.logprobs
    except NoLogprobs:
        parsed = parse_text(response, choice=choice)
    if parsed.finish_reason in (REFUSAL, TOOL_CALL):
        raise InvalidResponse(f"it is a {parsed.finish_reason.replace('_', ' ')}; expected an answer")
    notes = [] if isinstance(parsed, ParsedText) else [parsed.note]
    if _is_choice(given):
        notes = [note.replace(first_of(2, 0), "").strip("; ") for note in notes]
    elif isinstance(parsed, ParsedText) and _choices(response) > 1:
        notes = [first_of(2, 0)]
    if not parsed.finish_reason:
        notes.append(UNSTATED)
    return PanelAnswer(
        parsed.text,
        parsed.model,
        None if logprobs is None else logprobs.tolist(),
        cut=parsed.finish_reason not in ("", STOP),
        note="; ".join(dict.fromkeys(filter(None, notes))),
        logprobs_mode="unknown" if isinstance(parsed, ParsedText) else parsed.logprobs_mode,
    )


def _is_choice(given: object) -> TypeGuard[tuple[object, int]]:
    """Returns whether this is a response with the number of a choice, rather than an answer."""
    return isinstance(given, tuple) and len(given) == 2 and type(given[1]) is int


def signals_in(answer: PanelAnswer, names: Sequence[str]) -> Floats:
    """Returns the signals (S,) of an answer, NaN where one is missing. Raises `InvalidResponse` for log-probabilities,
    a stated confidence or a score that are no numbers."""
    numbers = None
    if answer.logprobs is not None and not (isinstance(answer.logprobs, Sized) and not len(answer.logprobs)):
        numbers = terms(check_logprobs(answer.logprobs)[None])[0].tolist()
    values: tuple[tuple[str, object], ...] = ((STATED, answer.stated), (SCORE, answer.score))
    for name, value in values:
        if value is not None and (isinstance(value, bool) or not isinstance(value, Real)):
            raise InvalidResponse(f"its {name} is a {type(value).__name__}; expected a number, or None")
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
    gone = np.isnan(levels)
    if not (gone | np.isfinite(levels)).all() or (np.diff(levels, axis=2) < 0).any():
        raise ValueError("the levels of a signal do not rise")
    if (gone.any(axis=2) != gone.all(axis=2)).any():
        raise ValueError("a signal has some of its levels")
    if not names or len(set(dimensions)) < len(dimensions):
        raise ValueError(f"the agents are {names} and the dimensions {dimensions}")
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
    return int.from_bytes(hashlib.sha256(request.encode(errors="replace")).digest()[:8]) / 2**64
