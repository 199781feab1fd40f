"""Converts MetaCogAgent runs to outcomes, to train a router that replaces its pipeline.

The router may read only what the pipeline's policy sees in `State`: the confidence that an agent states before it
answers, and the dimension from the classifier. `State` holds neither the answer nor the question's words. An agent's
price covers both its confidence and its answer.
"""

from collections.abc import Iterable, Mapping, Sequence

from metaprobe.checkpoints import ContractMismatch
from metaprobe.eval.systems.metacogagent_figures import ANSWER, ASKING, READ_LABEL, STATED_KIND, metacogagent_outcomes
from metaprobe.llms.pricing import Price
from metaprobe.probes.signal_source import SignalSource
from metaprobe.records.errors import RecordError
from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes, outcome_of_line
from metaprobe.records.store import RunStore, fingerprint
from metaprobe.records.types import Call, Run

ASSESS = "assess"
ROUTER_SIGNAL = "confidence"
"""The one signal that a router reads."""


def source_of_confidences(specs: Sequence[str], store: RunStore) -> SignalSource:
    """Returns the checkpoints of `confidence[@AGENT]=[stated+]CHECKPOINT`, for the runs that a router will learn from.

    A checkpoint that was trained on these runs is refused: it has seen their labels, so its scores here are too sure.
    This is detected only if it was trained on exactly these runs, not if they were a part of its training data.

    Raises `RecordError` for a name other than `confidence`, the only signal that a router reads, and `ContractMismatch`
    for a probe of hidden states.
    """
    # Names and agents must be known.
    answering = sorted({call.agent for run in store.runs(hidden=False) for call in run.calls if call.stage == ANSWER})
    for spec in specs:
        name, _, agent = spec.partition("=")[0].partition("@")
        if name != ROUTER_SIGNAL:
            raise RecordError(f"signal {spec!r}: a router reads {ROUTER_SIGNAL} only; give {ROUTER_SIGNAL}=CHECKPOINT")
        if agent and agent not in answering:
            agent_names = ", ".join(answering)
            raise RecordError(f"signal {spec!r}: no agent {agent!r} answers in {store.path}; there are {agent_names}")
    # Each checkpoint must be usable here.
    source, data_fingerprint = SignalSource.load(specs), fingerprint(store)
    for spec in specs:
        replacement = source.replacement(*spec.partition("=")[0].split("@"))
        assert replacement is not None
        if replacement.layers:
            raise ContractMismatch(
                f"{spec}: it reads hidden states, and a router learns from runs without them; give a predictor on "
                "log-probabilities, or outcomes with the confidences that the probe gave (`confidence_source`)"
            )
        if replacement.missing_head:
            raise ContractMismatch(
                f"{spec}: it predicts {', '.join(replacement.heads)}, and not {replacement.missing_head}, which a "
                "confidence is; give a predictor of that"
            )
        training = replacement.reader.checkpoint.manifest.training
        if training is not None and training.fingerprint == data_fingerprint:
            raise RecordError(
                f"{spec}: the checkpoint was trained on these very runs, and is surer of their answers than of new "
                "ones; give one of other runs"
            )
    return source


def outcomes_of(
    runs: Iterable[Run], *, prices: Mapping[str, Price] | None = None, source: SignalSource | None = None
) -> list[QuestionOutcomes]:
    """Returns the outcomes of each item: for every agent that answered, whether it was right, how sure it was, and
    cost.

    If an item has several runs, the run with the most agents and confidences is used. So give runs of the variant
    `every-agent`: a policy's run tells little about the agents that it did not ask. The cost of stating a confidence is
    left out if the confidence is not read from the statement. Raises `RecordError` if no agent answered, or if a call
    has no price.

    Args:
        runs: runs of MetaCogAgent.
        prices: maps an agent or a model to its price; without a price, the cost that a call states is used.
        source: gives each agent's confidence; by default the run does.
    """
    fullest: dict[str, tuple[int, QuestionOutcomes]] = {}
    for run in runs:
        (record,) = metacogagent_outcomes([run], by_classifier=True)
        question = outcome_of_line(record)
        agents = {
            name: _outcome(run, name, outcome, prices or {}, source)
            for name, outcome in question.agents.items()
            if name and outcome.score is not None
        }
        asked_count = sum(1 + (outcome.confidence is not None) for outcome in agents.values())
        if agents and asked_count > fullest.get(question.id, (0,))[0]:
            outcomes_of_question = QuestionOutcomes(
                question.id, question.group, dimension=question.dimension, agents=agents
            )
            fullest[question.id] = asked_count, outcomes_of_question
    if not fullest:
        raise RecordError(
            "no run holds an agent's answer that a program judged; give runs of `metaprobe collect metacogagent "
            "--variant every-agent`"
        )
    return [question for _, question in fullest.values()]


def _outcome(
    run: Run, agent: str, outcome: AgentOutcome, prices: Mapping[str, Price], source: SignalSource | None
) -> AgentOutcome:
    """Returns the outcome of one agent in one run, with the confidence and its source.

    Args:
        run: the run.
        agent: the agent.
        outcome: the agent's outcome by the run alone.
        prices: as in `outcomes_of`.
        source: as in `outcomes_of`.
    """
    paid_calls = [call for call in run.calls if call.agent == agent and call.stage in ASKING]
    if source is None:
        calls = {call.id for call in paid_calls}
        read_sources = [label.source for label in run.labels if label.name == READ_LABEL and label.call_id in calls]
        confidence_source = "" if outcome.confidence is None else read_sources[0] if read_sources else "stated"
        confidence = outcome.confidence
    else:
        answer = [call for call in paid_calls if call.stage == ANSWER][-1]
        stated = next((v for call in paid_calls if (v := run.stated(STATED_KIND, call.id)) is not None), None)
        signal = source.signal(ROUTER_SIGNAL, agent=agent, stated=stated, call=answer)
        confidence, confidence_source = (None, "") if signal is None else (signal.value, signal.source)
        if not source.asks(ROUTER_SIGNAL, agent):
            paid_calls = [call for call in paid_calls if call.stage != ASSESS]
    cost = sum(_price(call, prices) for call in paid_calls)
    has_tokens = all(call.usage.prompt_tokens for call in paid_calls)
    return AgentOutcome(
        score=outcome.score,
        confidence=confidence,
        cost_usd=cost,
        latency_ms=outcome.latency_ms,
        confidence_source=confidence_source,
        prompt_tokens=sum(call.usage.prompt_tokens for call in paid_calls) if has_tokens else None,
        completion_tokens=sum(call.usage.completion_tokens for call in paid_calls) if has_tokens else None,
    )


def assessment_part(
    runs: Iterable[Run], *, prices: Mapping[str, Price] | None = None, source: SignalSource | None = None
) -> float | None:
    """Returns the share of the agents' cost that was spent on assessments before the answer; None if all was free.

    Only agents that gave an assessment and an answer are counted. The share is 1 if the confidence is read in an answer
    (`source`), because the draft is then paid for. Raises `RecordError` if this holds only for some agents, because a
    router has a single share.
    """
    cost_by_part: dict[bool, float] = {True: 0.0, False: 0.0}
    runs = list(runs)
    if source is not None:
        agents = {call.agent for run in runs for call in run.calls if call.agent}
        reads_answer = {name: source.reads(ROUTER_SIGNAL, name) == "answer" for name in sorted(agents)}
        if len(set(reads_answer.values())) > 1:
            raise RecordError(
                f"the confidence of {', '.join(name for name, is_answer in reads_answer.items() if is_answer)} is read "
                "in the answer, and that of the others before it: give a signal for all agents, or for none"
            )
        if all(reads_answer.values()):
            return 1.0
    for run in runs:
        agent_calls = [call for call in run.calls if call.stage in ASKING]
        assessed = {call.agent for call in agent_calls if call.stage != ANSWER}
        asked_both = assessed & {call.agent for call in agent_calls if call.stage == ANSWER}
        for call in agent_calls:
            if call.agent in asked_both:
                cost_by_part[call.stage != ANSWER] += _price(call, prices or {})
    total = sum(cost_by_part.values())
    return cost_by_part[True] / total if total else None


def _price(call: Call, prices: Mapping[str, Price]) -> float:
    """Returns the cost of a call in US dollars. Raises `RecordError` if it is not known."""
    price = prices.get(call.agent) or Price.of_model(call.model, "", prices)
    if price is None:
        if call.cost_usd is not None:
            return call.cost_usd
        raise RecordError(
            f"call {call.id} has no recorded cost, as of a local model: give the price of {call.agent!r} or of "
            f"{call.model!r} (`--prices FILE`), 0 where it costs nothing"
        )
    if not call.usage.prompt_tokens:
        raise RecordError(f"call {call.id} does not say how many tokens it read, so its cost is unknown")
    return price.cost_usd(call.usage)
