"""A system's tools while it runs over one item, and the notes that become its `Run`.

Every system is `async def system(session: Session) -> Run`. It asks models by stage and agent, notes what they stated
about themselves, asks a policy at named points, takes its numbers from a source of signals, and ends with
`session.run(...)`.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from metaprobe.api import (
    LLM,
    Call,
    Decision,
    DecisionAnswer,
    Item,
    Label,
    LLMError,
    Message,
    PanelAnswer,
    PaperRules,
    Policy,
    RecordError,
    Request,
    Run,
    Sampling,
    Signal,
    SignalSource,
    State,
    Statement,
    canonical,
)
from metaprobe.papers.policies.profiles import Profiles
from metaprobe.papers.systems.decision_calls import answers_in, messages_about
from metaprobe.papers.systems.prompting import Prompts
from metaprobe.papers.systems.system_options import Constant, N, Options

if TYPE_CHECKING:
    from metaprobe.api import Panel, PanelStep, PanelVerdict

PANEL = "panel"
"""Name of a variant in which a panel keeps one of several answers, and of the label with the kept answer's P(right)."""
UNREAD_PREFIX = "unread:"
"""Prefix of the label of a call that a checkpoint should have read and could not."""
READ_STAGE = "read"
"""Stage of the one-token call that only reads a prompt, for a probe that judges before the answer."""


@dataclass(frozen=True, slots=True)
class Models:
    """Models by stage and agent: a small monitor, a larger generator, an external judge."""

    default: LLM
    by_name: Mapping[str, LLM] = field(default_factory=dict)
    """Maps an agent or stage to the model that replaces the default there; an agent's name goes before a stage's."""

    def of(self, stage: str, agent: str = "") -> LLM:
        return self.by_name.get(agent) or self.by_name.get(stage) or self.default

    @property
    def all(self) -> tuple[LLM, ...]:
        """Returns each model once, the default model first."""
        return tuple({id(llm): llm for llm in (self.default, *self.by_name.values())}.values())

    @property
    def description(self) -> str:
        """`model` or `model+stage=other`, as in run ids."""
        return "+".join([self.default.name, *(f"{name}={llm.name}" for name, llm in sorted(self.by_name.items()))])


@dataclass(frozen=True, slots=True)
class Setup:
    """Settings that are the same for every item of a collection."""

    models: Models
    prompts: Prompts
    policy: Policy = field(default_factory=PaperRules)
    signals: SignalSource = field(default_factory=SignalSource)
    profiles: Profiles = field(default_factory=Profiles)
    agents: tuple[str, ...] = ()
    """Names of the agents, if the system takes any number of them."""
    seed: int = 0
    options: Options = field(default_factory=Options)
    panel: "Panel | None" = None
    """Panel of the variants that keep one of several answers by a panel; None if no such variant is run."""


class Session:
    """One pass of one system over one item."""

    def __init__(self, setup: Setup, item: Item, *, system: str, variant: str, run_id: str, index: int = 0) -> None:
        """Starts the pass, without any call yet.

        Args:
            setup: the setup.
            item: the item.
            system: name of the system.
            variant: name of the variant.
            run_id: id of the run.
            index: the item's place among the items that are run, from 0.
        """
        self.setup = setup
        self.item = item
        self.index = index
        self.system = system
        self.variant = variant
        self.run_id = run_id
        self.signals = setup.signals
        self._calls: dict[str, Call | None] = {}
        self._statements: list[Statement] = []
        self._labels: list[Label] = []
        self._decisions: list[Decision] = []
        self._decision_answers: list[DecisionAnswer] = []

    async def ask(
        self,
        prompt: str,
        *,
        stage: str,
        agent: str = "",
        round: int = 0,
        parent: Call | None = None,
        max_tokens: int = 256,
        temperature: float = 0.0,
        stop: Sequence[str] = (),
        json_schema: str = "",
        hidden: bool = False,
        system_prompt: str = "",
        model_of: str = "",
        **slots: object,
    ) -> Call:
        """Fills a prompt file and asks the model of this stage and agent. The item's fields are slots as well.

        Stage, agent and round name the call, so they must differ from those of every other call of the run. A sampled
        call draws with a seed that follows from item, stage, agent and round, so another variant that asks the same
        gets the same answer. Raises `LLMError` if there is no answer.

        Args:
            prompt: name of the prompt.
            stage: the stage.
            agent: the agent.
            round: number of the round.
            parent: the call that this one continues or judges.
            max_tokens: most tokens of the answer.
            temperature: temperature of sampling; 0 is greedy.
            stop: texts that end the answer.
            json_schema: schema that the answer follows.
            hidden: whether hidden states may be kept.
            system_prompt: goes before the prompt's own turns.
            model_of: stage whose model is asked, if it is not `stage`.
            **slots: values of the prompt's slots.
        """
        messages = self.messages(prompt, **slots)
        if system_prompt:
            messages = (Message("system", system_prompt), *messages)
        digest = hashlib.sha256(f"{self.draw_id}/{stage}/{agent}/{round}".encode()).digest()
        sampling = Sampling(
            temperature=temperature,
            seed=int.from_bytes(digest[:4], "big") if temperature > 0 else None,
            max_tokens=max_tokens,
            stop=tuple(stop),
            json_schema=json_schema,
        )
        return await self.send(
            messages, sampling, stage=stage, agent=agent, round=round, parent=parent, hidden=hidden, model_of=model_of
        )

    async def read(self, messages: tuple[Message, ...], *, model_of: str, agent: str = "", round: int = 0) -> Call:
        """Makes one pass over a prompt, for a probe on its last token: a call of one token, which nobody reads.

        Args:
            messages: the prompt.
            model_of: the stage that would answer this prompt; its model reads it.
            agent: the agent.
            round: number of the round.
        """
        return await self.send(
            messages, Sampling(max_tokens=1), stage=READ_STAGE, agent=agent, round=round, hidden=True, model_of=model_of
        )

    async def send(
        self,
        messages: tuple[Message, ...],
        sampling: Sampling,
        *,
        stage: str,
        agent: str = "",
        round: int = 0,
        parent: Call | None = None,
        hidden: bool = False,
        model_of: str = "",
        on_text: Callable[[str], None] | None = None,
    ) -> Call:
        """Asks with messages that are already made. Every call goes through here and into the run.

        A limit that was set for the stage (for `model_of`, if it is given) replaces the sampling's.

        Args:
            messages: the messages.
            sampling: the sampling.
            stage: the stage.
            agent: the agent.
            round: number of the round.
            parent: the call that this one continues or judges.
            hidden: whether hidden states may be kept.
            model_of: stage whose model is asked, if it is not `stage`.
            on_text: called with each piece of the answer as it comes, or with all of it at once if the model does not
                stream.
        """
        limits, limit_stage = self.setup.options.tokens, model_of or stage
        if stage != READ_STAGE and limit_stage in limits:
            sampling = replace(sampling, max_tokens=limits[limit_stage])
        call_id = "/".join([self.run_id, stage, *filter(None, [agent, str(round) if round else ""])])
        if call_id in self._calls:
            raise RecordError(f"{self.system} asked twice as {call_id}: give each call its own stage, agent and round")
        self._calls[call_id] = None  # keeps the order of asking, even if later calls are answered first
        request = Request(
            id=call_id,
            messages=messages,
            sampling=sampling,
            stage=stage,
            agent=agent,
            round=round,
            parent=parent.id if parent else None,
            hidden=hidden,
        )
        llm = self.setup.models.of(model_of or stage, agent)
        call = await (llm.complete(request) if on_text is None else _complete_streamed(llm, request, on_text))
        self._calls[call_id] = call
        return call

    async def judge_by_questions(
        self, judged: Call, questions: Sequence[Mapping[str, Any]], *, stage: str, agent: str = ""
    ) -> tuple[DecisionAnswer, ...]:
        """Asks the stage's decision model typed questions about a call's answer, and notes its replies.

        The model sees the messages of the call, and then its answer. Raises `LLMError`.

        Args:
            judged: the call.
            questions: the questions.
            stage: the stage.
            agent: the agent.
        """
        call = await self.send(messages_about(judged, questions), Sampling(), stage=stage, agent=agent, parent=judged)
        answers = answers_in(call)
        self._decision_answers += answers
        return answers

    def messages(self, prompt: str, **slots: object) -> tuple[Message, ...]:
        """Returns a prompt file's turns, filled from `slots`, the item's fields and its question."""
        filled = {"question": self.item.question, **self.item.fields, **{k: str(v) for k, v in slots.items()}}
        return self.setup.prompts.messages(prompt, **filled)

    def constant(self, constant: Constant[N]) -> N:
        """Returns the constant's value: the one that was set, or its default."""
        return self.setup.options.value(constant)

    def state(self, call: Call, kind: str, value: float | None) -> float | None:
        """Notes what a call stated (None: it was asked and said nothing readable), and returns it.

        Args:
            call: the call.
            kind: kind of the statement.
            value: the stated number.
        """
        self._statements.append(Statement(call.id, kind, value))
        return value

    def signal(
        self, name: str, *, agent: str = "", stated: float | None = None, call: Call | None = None
    ) -> Signal | None:
        """Returns the number that a rule should use: stated, read by a checkpoint, or both.

        If a checkpoint has read `call`, the label `signal:NAME` notes the number; if it could not, the label
        `unread:NAME` does.

        Args:
            name: name of the signal.
            agent: the agent.
            stated: the stated number.
            call: the call to read.
        """
        signal = self.signals.signal(name, agent=agent, stated=stated, call=call)
        replacement = self.signals.replacement(name, agent)
        if replacement is not None and call is not None:
            if signal is not None and signal.source != "stated":
                self.label(call, f"signal:{name}", signal.value, source=signal.source)
            else:
                self.label(call, UNREAD_PREFIX + name, 1.0, source=replacement.digest)
        return signal

    def label(self, call: Call, name: str, value: float, *, source: str) -> None:
        """Notes what is known about a call's answer.

        Args:
            call: the call.
            name: name of the label.
            value: its value.
            source: its source.
        """
        self._labels.append(Label(call.id, name, float(value), source))

    def decide(self, point: str, legal_actions: Sequence[str], **known: object) -> Decision:
        """Asks the policy at a named point.

        Args:
            point: the point.
            legal_actions: the legal actions.
            **known: fields of `State`; its dimension is the item's unless given.
        """
        decision_id = f"{self.run_id}/{point}/{sum(d.point == point for d in self._decisions)}"
        state = State(decision_id, point, **{"dimension": self.item.dimension, **known})  # type: ignore[arg-type]
        decision = self.setup.policy.decide(state, legal_actions)
        self._decisions.append(decision)
        return decision

    @property
    def panel(self) -> "Panel":
        """The panel. Raises `RecordError` if the setup has none."""
        if self.setup.panel is None:
            raise RecordError(
                f"{self.system} ({self.variant}) keeps an answer by a panel, and none is given: --panel C"
            )
        return self.setup.panel

    def judge(self, answers: Sequence[Call], dimension: str | None = None) -> "PanelVerdict":
        """Returns the panel's verdict on answers to the item. `dimension` replaces the item's."""
        item = self.item
        return self.panel.judge(
            [PanelAnswer.of_call(item, call) for call in answers],
            dimension=item.dimension if dimension is None else dimension,
            question=item.question,
            choices=item.choices,
            same=self._comparison_form,
        )

    def keep(self, answers: Sequence[Call], dimension: str | None = None, kept_index: int | None = None) -> Call:
        """Returns the answer that the panel keeps, with its P(right) as a label; the first if none can be read.

        Args:
            answers: the answers.
            dimension: replaces the item's dimension.
            kept_index: index of the answer to keep, if the panel's last step names it.
        """
        verdict = self.judge(answers, dimension)
        index_to_keep = verdict.kept if kept_index is None else kept_index
        for answer_class in verdict.classes:
            if index_to_keep in answer_class.members:
                self.label(answers[index_to_keep], PANEL, answer_class.probability, source=verdict.checkpoint)
        return answers[index_to_keep or 0]

    def panel_step(self, agents: Sequence[str], answers: Sequence[Call], dimension: str) -> "PanelStep":
        """Returns which of these agents the panel asks after the answers, or which answer it keeps.

        Args:
            agents: the agents.
            answers: the answers.
            dimension: dimension of the item.
        """
        item = self.item
        return self.panel.next(
            item.question,
            dimension,
            [PanelAnswer.of_call(item, call) for call in answers],
            prices={name: math.inf for name in self.panel.agents.names if name not in agents},
            request_id=self.draw_id,
            choices=item.choices,
            same=self._comparison_form,
        )

    @property
    def _comparison_form(self) -> Callable[[str], str | None] | None:
        """Function that maps an answer to its canonical form, which equal answers share; None if no program can."""
        return None if self.item.check == "none" else lambda text: canonical(self.item, text) or None

    @property
    def draw_id(self) -> str:
        """Name from which seeds and the panel's settings are drawn: the same for the same item and seed."""
        return f"{self.setup.seed}/{self.item.id}"

    def run(self, final_answer: str) -> Run:
        """Returns everything that was noted, as a run."""
        return Run(
            id=self.run_id,
            system=self.system,
            variant=self.variant,
            item=self.item,
            calls=tuple(call for call in self._calls.values() if call is not None),
            statements=tuple(self._statements),
            labels=tuple(self._labels),
            decisions=tuple(self._decisions),
            decision_answers=tuple(self._decision_answers),
            final_answer=final_answer,
        )


async def _complete_streamed(llm: LLM, request: Request, on_text: Callable[[str], None]) -> Call:
    """Returns the finished call, and passes its text on piece by piece. Raises `LLMError` if the stream has no end.

    Args:
        llm: the model.
        request: the request.
        on_text: called with each piece.
    """
    if not llm.capabilities.stream:
        call = await llm.complete(request)
        on_text(call.text)
        return call
    async for event in llm.stream(request):
        if isinstance(event, Call):
            return event
        on_text(event.text)
    raise LLMError(f"request {request.id}: the stream of {llm.name} ended without the finished call; ask again")
