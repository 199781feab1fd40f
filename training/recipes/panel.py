"""A panel's checkpoint: several answers to one question -> which to keep, how sure, and whom to ask next.

The models are fitted in `training.panel`. Which answer is kept, when to stop and whom to ask climbs ladders of
simple ways (`routing.panel.model_rows.PICKS`, `planner.STOPS`, `planner.ASKS`).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Checkpoint, Training
from metaprobe.checkpoints.rendered_table import format_interval
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval, mean_interval, statistic_interval
from metaprobe.eval.metrics.calibration import ece_interval
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.llms.pricing import Price
from metaprobe.records.errors import RecordError
from metaprobe.records.outcomes import QuestionOutcomes, only_agents, read_outcomes, with_costs
from metaprobe.records.store import RunStore
from metaprobe.routing.panel.compared_answers import compared_by
from metaprobe.routing.panel.judgement import (
    AGENTS,
    GAIN_GRAPH,
    GAIN_INPUT,
    GAIN_OUTPUT,
    INPUT,
    ODDS,
    ODDS_GRAPH,
    ODDS_INPUT,
    PANEL_KIND,
    PROBABILITY,
    TOOL_CALLS,
    WORDS_FILE,
    PanelJudge,
    agents_json,
)
from metaprobe.routing.panel.model_rows import (
    JOINT,
    MAJORITY,
    PANEL_STATE,
    PICKS,
    SCORE,
    STATED,
    UNREADABLE_CLASS,
    AgentProfiles,
    Floats,
    Ints,
    answer_columns,
    class_columns,
)
from metaprobe.routing.panel.planner import (
    ASK_STATE,
    ASKED_ON,
    ASKS,
    CONSISTENT,
    FIRST_TO,
    FIXED,
    IN_A_ROW,
    ONE,
    SURE,
    TABLE,
    After,
    Asks,
    Setting,
    majority_probability,
    upper_hull,
)
from metaprobe.routing.panel.planner import GAIN as GAIN_OF_ASKING
from metaprobe.routing.panel.planner import WORDS as ASK_BY_WORDS
from metaprobe.routing.panel.sources import (
    FROM_LOGPROBS,
    LEFT_OUT_KEY,
    SIGNAL_SOURCES,
    SOURCES_KEY,
    source_for,
    source_in_words,
)
from metaprobe.training.export import Export, GraphBuilder, write_checkpoint, writes
from metaprobe.training.panel.after_play import Ended, ended, fit_after, plans_of
from metaprobe.training.panel.compared_asks import cross_played, standing_way
from metaprobe.training.panel.fitted_asks import by_dimension, fit_asks
from metaprobe.training.panel.fitted_panel import (
    MIN_PANEL_GROUPS,
    PANEL_FOLDS,
    CrossFitPanel,
    FittedPanel,
    Linear,
    Placed,
    cross_fit,
)
from metaprobe.training.panel.labelled_panels import (
    MIN_SIGNAL_ANSWERS,
    LoggedPanels,
    Panels,
    logged_panels,
    panels_at,
    panels_of_outcomes,
    signals_left_out,
)
from metaprobe.training.panel.played_asks import by_agent
from metaprobe.training.panel.played_panels import ORDERS, PlayedPanels, play_panels
from metaprobe.training.panel.question_words import count_words
from metaprobe.training.panel.same_answers import equality_audit
from metaprobe.training.recipes.outcomes_of_runs import assessment_part, outcomes_of, source_of_confidences
from metaprobe.training.training_options import PanelOptions, RouterOptions, WrongOptions
from metaprobe.training.trees import Trees

BEHIND = 0.003
"""Largest loss in accuracy of the chosen way against a simple way. The audit fails unless the whole interval shows a
smaller loss.
"""
MOST_GOLDEN = 16
"""Most golden rows that a checkpoint records."""
LEAST_ENDED = 20
"""Fewest questions that ended after a number of answers, for showing the reliability at this number."""
NOT_BEHIND = 0.005
"""Largest loss in accuracy of the chosen way to ask against the best simple way. The audit fails unless the whole
interval shows a smaller loss.
"""
PACKAGES = ("lightgbm", "sklearn", "scipy", "onnxmltools")
THRESHOLDS_TRIED = 80
"""Number of thresholds that are tried for a way to stop."""


def choose_pick(plays: PlayedPanels, sampled: bool) -> str:
    """Returns the joint way, unless a simple way was ahead of it by more than a standard error on groups left out.

    The joint way reads the number of each simple way, so it can fall back to a simple way. Over all sizes from 2 on, or
    with all answers where they are of several agents.
    """
    mean = {way: _by_question(plays, plays.right[way], sampled) for way in PICKS}
    best = max(PICKS, key=lambda way: float(mean[way].mean()))
    ahead = mean_interval(mean[best] - mean[JOINT], cluster_weights(plays.groups.tolist(), 200))
    return best if ahead.estimate > (ahead.high - ahead.low) / 4 else JOINT  # an interval is four standard errors wide


def _by_question(plays: PlayedPanels, right: Floats, sampled: bool) -> Floats:
    """Returns the mean (n,) of what was right (o, n, K) over the sizes that were asked, without the first answer; of
    several agents only with all answers."""
    K = right.shape[2]
    if not sampled:
        return np.asarray(right[..., -1].mean(axis=0))
    counts_answer = (np.arange(1, K + 1) <= plays.answers[:, None]) & (np.arange(K) > 0)
    return np.asarray((right.mean(axis=0) * counts_answer).sum(axis=1) / np.maximum(counts_answer.sum(axis=1), 1))


def stop_settings(plays: PlayedPanels, way: str) -> list[Setting]:
    """Returns the settings of every way to stop, at all its thresholds, with mean answers and accuracy.

    `way`: one of `PICKS`, which chooses the kept class.
    """
    right, K = plays.right[way], plays.right[way].shape[2]
    statistics = statistics_of(plays)
    thresholds: dict[str, Floats] = {
        FIXED: np.arange(1.0, K + 1),
        FIRST_TO: np.arange(1.0, K + 1),
        IN_A_ROW: np.arange(1.0, K + 1),
        CONSISTENT: np.linspace(0.5, 0.9995, THRESHOLDS_TRIED),
        SURE: np.linspace(0.02, 0.995, THRESHOLDS_TRIED),
    }
    if plays.gain is not None:
        thresholds[ASKED_ON] = np.geomspace(5e-4, 0.5, THRESHOLDS_TRIED)
    found = []
    for name, values in statistics.items():
        for threshold in thresholds[name]:
            stop_places = stopped(plays, values, Setting(name, float(threshold), 0.0, 0.0))
            accuracy = float(np.take_along_axis(right, stop_places[..., None], axis=2).mean())
            found.append(Setting(name, float(threshold), float(stop_places.mean() + 1), accuracy))
    return found


def statistics_of(plays: PlayedPanels) -> dict[str, Floats]:
    """Maps each way to stop to the statistic (o, n, K) that it compares with its threshold."""
    shape = plays.score.shape
    K = int(plays.counts[..., :2].max(initial=0)) + 1
    table = np.array([[majority_probability(first, second) for second in range(K)] for first in range(K)])
    found = {
        FIXED: np.broadcast_to(np.arange(1.0, shape[2] + 1), shape),
        FIRST_TO: plays.counts[..., 0].astype(np.float64),
        IN_A_ROW: plays.counts[..., 2].astype(np.float64),
        CONSISTENT: table[plays.counts[..., 0], plays.counts[..., 1]],
        SURE: plays.score,
    }
    return found if plays.gain is None else {**found, ASKED_ON: plays.gain}


def stopped(plays: PlayedPanels, values: Floats, setting: Setting) -> Ints:
    """Returns the place (o, n), from 0, of the answer after which a setting stops, at latest the last one."""
    stops = values <= setting.threshold if setting.way == ASKED_ON else values >= setting.threshold
    last = np.minimum(plays.answers, values.shape[2]) - 1
    stops[:, np.arange(len(last)), last] = True
    return np.asarray(stops.argmax(axis=2))


@writes(PANEL_KIND, *PACKAGES)
def train_panel(data: str | Path | Panels, options: PanelOptions) -> Checkpoint:
    """Returns the panel's checkpoint, fitted on a run store, a file of outcomes, or panels.

    Raises `RecordError` where there is too little to learn from.
    """
    command = options.recorded("train_panel")
    if isinstance(data, Panels):
        panels = data
    else:
        options.on_step(f"reading {Path(data).name}")
        panels = panels_at(
            Path(data), stage=options.sampled, same=options.same, score_by=options.score_by, only=options.agent
        )
    if len(set(panels.groups)) < MIN_PANEL_GROUPS:
        raise RecordError(
            f"{len(panels)} questions in {len(set(panels.groups))} groups; a panel needs at least "
            f"{MIN_PANEL_GROUPS} groups"
        )
    export, note = _trained(panels, None, options, command)
    if panels.reading is not None:
        options.on_line(panels.reading.why)
    if note:
        options.on_line(note)
    return write_checkpoint(options.out, export)


@writes(PANEL_KIND, *PACKAGES)
def train_router(outcomes: str | Path | Sequence[QuestionOutcomes], options: RouterOptions) -> Checkpoint:
    """Returns the checkpoint of a panel that chooses whom to ask, fitted on outcomes with prices.

    Outcomes are a file, a folder of runs, or questions. From logged decisions it learns only whom to ask. Raises
    `WrongOptions` for an option that only a folder of runs takes, and `RecordError` where there is too little to learn
    whom to ask from.
    """
    command, assessment = options.recorded("train_router"), None
    if isinstance(outcomes, str | Path):
        path = Path(outcomes)
        options.on_step(f"reading {path.name}")
        if path.is_dir():
            runs = RunStore(path)
            prices = Price.read(Path(options.prices)) if options.prices else None
            source = source_of_confidences(options.signal, runs) if options.signal else None
            questions = outcomes_of(runs, prices=prices, source=source)
            assessment = assessment_part(runs, prices=prices, source=source)
        elif options_of_runs := [name for name in ("prices", "signal") if getattr(options, name)]:
            raise WrongOptions(
                f"{options_of_runs[0]} is for a folder of runs; {path} is a file, whose outcomes hold their costs "
                "and confidences"
            )
        else:
            questions = read_outcomes(path, agents=options.agent)
    else:
        questions = list(outcomes)
    questions = with_costs(only_agents(questions, options.agent), options.cost_usd)
    names = sorted({name for question in questions for name in question.agents})
    for line in gaps_of(questions, names):
        options.on_line(line)
    more: dict[str, Any] = {}
    if assessment is not None:
        more["assessment"] = assessment
    logged = logged_panels(questions) if any(question.propensities for question in questions) else None
    panels = logged.single if logged else panels_of_outcomes(questions, same=options.same)
    if len(panels.agents) < 2:
        raise RecordError(f"the outcomes are of {', '.join(panels.agents)} alone; expected at least 2 agents")
    if panels.reading is not None:
        options.on_line(panels.reading.why)
    export, note = _trained(panels, logged, options, command)
    if note:
        raise RecordError(note)
    audits = [*export.audits, *([logged.audit] if logged else [])]
    checkpoint = write_checkpoint(options.out, replace(export, contract={**export.contract, **more}, audits=audits))
    asks = PanelJudge(checkpoint).asks
    assert asks is not None, "a training that stores no way of asking ends with the note"
    options.on_line(asks.curves.default_in_words())
    return checkpoint


def gaps_of(questions: Sequence[QuestionOutcomes], agents: Sequence[str]) -> Iterator[str]:
    """Yields a line for each kind of gap: how many lines lack what, of which agents, and what is done about it.

    Logged decisions hold one agent by their nature, so that the others are not missing there.
    """
    full = [question for question in questions if not question.propensities]
    missing = _lines(full, [[name for name in agents if name not in question.agents] for question in full])
    if missing:
        yield (
            f"{missing} lack agents: nothing is learned of an agent from a line without it, and an agent that is not "
            "on every line cannot be chosen to answer everything alone"
        )
    outcomes = [[(name, question.agents.get(name)) for name in agents] for question in questions]
    if failed := _lines(
        questions,
        [[n for n, o in agent_outcomes if o is not None and o.error is not None] for agent_outcomes in outcomes],
    ):
        yield (
            f"{failed} hold failed calls: each counts as not right, at its cost_usd or else the agent's mean cost, and "
            "never as an answer that could be kept"
        )
    if unlabelled := _lines(
        questions, [[n for n, o in agent_outcomes if o is not None and o.score is None] for agent_outcomes in outcomes]
    ):
        yield f'{unlabelled} hold answers without "correct" or "score": these answers are left out'
    if bare := sum(all(o is None or o.score is None for _, o in agent_outcomes) for agent_outcomes in outcomes):
        yield f"{bare} of {len(questions)} lines hold no scored answer of these agents: these lines are left out"


def _lines(questions: Sequence[QuestionOutcomes], names_by_line: Sequence[Sequence[str]]) -> str:
    """Returns how many lines name an agent, and how often each agent is named, as text; empty if no line names one."""
    counts = Counter(name for names in names_by_line for name in names)
    if not counts:
        return ""
    shown = ", ".join(
        f"{name} {count}" for name, count in sorted(counts.items(), key=lambda name_count: -name_count[1])
    )
    return f"{sum(map(bool, names_by_line))} of {len(questions)} lines ({shown})"


def _trained(
    panels: Panels, logged: LoggedPanels | None, options: PanelOptions | RouterOptions, command: str
) -> tuple[Export, str]:
    """Returns the export, and the reason if the panel did not learn which agent to ask.

    The reason is empty if it learned this, and for samples of one agent.
    """
    cross = cross_fit(panels, seed=options.seed, on_step=options.on_step)
    fitted, plays = play_panels(panels, cross, seed=options.seed)
    way = choose_pick(plays, panels.sampled)
    asks, note = fit_whom_to_ask(panels, cross, way, logged=logged, seed=options.seed, on_step=options.on_step)
    return _export(fitted, plays, way, asks, panels, options.seed, command), note


@dataclass(frozen=True, slots=True, eq=False)
class WhomToAsk:
    """The ways to ask, with their results on held-out questions."""

    asks: Asks
    gain: Trees | None
    """Trees that give the expected gain; None if no way uses the gain."""
    accuracy: Interval
    """Accuracy of the way to ask that is used by default."""
    over_one_agent: Interval
    """This accuracy minus that of one agent alone at the same budget."""
    spent: Interval
    """Mean spending by default, in US dollars for 1,000 questions, on questions that the models have not seen."""
    simple: str
    """Simple way that is most accurate at the same budget, on groups left out."""
    over_simple: Interval
    """The accuracy minus that of this simple way."""
    reliability: dict[str, tuple[Interval, Interval]]
    """Number of answers after which asking stopped -> P(right) that is said by default, and how often it was right."""


def fit_whom_to_ask(
    data: Panels,
    cross: CrossFitPanel,
    way: str,
    *,
    logged: LoggedPanels | None = None,
    seed: int = 0,
    on_step: Callable[[str], None] = lambda _: None,
) -> tuple[WhomToAsk | None, str]:
    """Returns (the learned ways to ask, a note), or (None, the reason) if nothing could be learned.

    Args:
        data: the questions with their answers.
        cross: models by inner fold.
        way: way to pick the answer that is kept.
        logged: logged decisions. Only ways that ask one agent are learned from them, because they do not show the worth
            of a second answer.
        seed: seed of draws and fits.
        on_step: called with each step in words.
    """
    if data.sampled:
        return None, ""
    try:
        by_agent_panels = by_agent(logged.with_every_agent() if logged else data)
    except RecordError as error:
        return None, f"nothing is learned of whom to ask next: {error}"

    def crossed(rows: Ints) -> CrossFitPanel:
        part = by_agent_panels.take(rows)
        return cross_fit(part, seed=seed) if logged is None else _alone(cross_fit(data.take(rows), seed=seed), part)

    if logged is not None:
        cross = _alone(cross, by_agent_panels)
    elif len(by_agent_panels) < len(data) or not np.array_equal(by_agent_panels.agent, data.agent):
        cross = cross_fit(by_agent_panels, seed=seed, on_step=on_step)
    on_step("whom to ask")
    ways = ASKS if logged is None else (ONE, TABLE, ASK_BY_WORDS)
    fitted = fit_asks(by_agent_panels, count_words(by_agent_panels.questions), cross, way, ways=ways, seed=seed)
    curves, accuracy_of_way = cross_played(by_agent_panels, fitted, crossed, seed=seed, on_step=on_step)
    groups = [np.array(by_agent_panels.groups)[cross.fold == fold] for fold in range(PANEL_FOLDS)]
    spent = mean_interval(fitted.spent(curves.plan()), cluster_weights(np.concatenate(groups)))
    tokens = np.stack([by_dimension(by_agent_panels.tokens[..., kind], by_agent_panels) for kind in range(2)])
    ends = [ended(view, [curves.plan()], way) for view in fitted.views] if logged is None else []
    learned = [ended(view, plans_of(curves), way) for view in fitted.views] if logged is None else []
    after = fit_after(learned) if learned else After()
    asks = Asks(curves, fitted.price, fitted.words, tokens, fitted.sure, after)
    plan, weights = curves.plan(), cluster_weights(list(by_agent_panels.groups))
    place = int(np.abs(curves.budgets - plan.cost).argmin())
    accuracy_here, over = (
        accuracy_of_way[plan.first.way][place],
        accuracy_of_way[plan.first.way][place] - accuracy_of_way[ONE][place],
    )
    simple = max(
        (name for name in accuracy_of_way if name not in (ASK_BY_WORDS, GAIN_OF_ASKING)),
        key=lambda n: accuracy_of_way[n][place].mean(),
    )
    behind = mean_interval(accuracy_of_way[plan.first.way][place] - accuracy_of_way[simple][place], weights)
    reliability = _reliability(ends, learned, groups)
    accuracy, over_one = mean_interval(accuracy_here, weights), mean_interval(over, weights)
    return WhomToAsk(asks, fitted.gain, accuracy, over_one, spent, simple, behind, reliability), ""


def _reliability(
    ends: Sequence[Ended], learned: Sequence[Ended], groups: Sequence[NDArray[np.str_]]
) -> dict[str, tuple[Interval, Interval]]:
    """Returns, by the number of answers after which asking stopped, P(right) that is said and how often that was right.

    The corrections are fitted as the exported one is, without the questions' inner fold. A question weighs by the share
    of it that a setting decides. Numbers that few questions have are left out.

    Args:
        ends: for each inner fold, how the default plan ends on its questions.
        learned: for each inner fold, how the plans end that a correction is fitted on.
        groups: for each inner fold, the group of each question.
    """
    if not ends:
        return {}
    predicted = np.concatenate([
        fold_ends.probability(fit_after([other for place, other in enumerate(learned) if place != fold]))
        for fold, fold_ends in enumerate(ends)
    ])  # fmt: skip
    right, came, share = (
        np.concatenate([getattr(fold_ends, name) for fold_ends in ends]) for name in ("score", "answers", "weight")
    )
    group = np.concatenate(
        [group_names[fold_ends.question] for fold_ends, group_names in zip(ends, groups, strict=True)]
    )
    found = {}
    for count in range(1, 4):
        stopped_here = came == count
        if share[stopped_here].sum() >= LEAST_ENDED:
            weights, share_here = cluster_weights(group[stopped_here]), share[stopped_here]
            found[str(count)] = (
                _share_mean(predicted[stopped_here], share_here, weights),
                _share_mean(right[stopped_here], share_here, weights),
            )
    return found


def _share_mean(values: Floats, share: Floats, weights: NDArray[np.integer]) -> Interval:
    """Returns the mean of values (m,), weighted by `share` (m,), with its interval over resamples of groups
    (`weights`).
    """
    return statistic_interval(lambda weight: weight @ (share * values) / (weight @ share), weights)


def _alone(cross: CrossFitPanel, panels: Panels) -> CrossFitPanel:
    """Returns the models of logged decisions with the questions `panels`, one column per agent, and log-odds 0."""
    answers = panels.answers(cross.fitted.agents)
    return replace(cross, placed=Placed(answers, np.zeros(answers.answer_class.shape), panels.right))


def _export(
    fitted: FittedPanel,
    plays: PlayedPanels,
    way: str,
    asks: WhomToAsk | None,
    data: Panels,
    seed: int,
    command: str,
) -> Export:
    K, left_out = plays.right[way].shape[2], signals_left_out(data)
    graph = classes_graph(fitted)
    rows, expected = _golden(fitted, data)
    odds = GraphBuilder()
    _linear(odds, fitted.odds, ODDS_INPUT, ODDS)
    odds_graph = odds.model({ODDS_INPUT: len(answer_columns(fitted.agents))}, (ODDS,))
    extra = {AGENTS: agents_json(fitted.agents), ODDS_GRAPH: odds_graph}
    if fitted.gain is not None:
        extra[GAIN_GRAPH] = gain_graph(fitted.gain, len(PANEL_STATE))
    if asks is not None:
        extra[WORDS_FILE] = asks.asks.words.to_bytes()
        if asks.gain is not None:
            extra[GAIN_GRAPH] = gain_graph(asks.gain, len(ASK_STATE))
    settings = stop_settings(plays, way) if data.sampled else []
    metrics, audits = _metrics(plays, way), _audits(plays, way, data.sampled)
    literal = np.full(data.answer_class.shape, UNREADABLE_CLASS) if data.literal is None else data.literal
    equal = equality_audit(data.answer_class, literal, data.right, data.groups)
    audits += [equal] if equal else []
    sampled = "samples of one agent" if data.sampled else f"answers of {len(data.agents)} agents"
    summary = (
        f"P(right) of each distinct answer among {sampled} to one question, and of none of them, from votes and the "
        f"answers' own signals. The answer that is kept is chosen by: {way} "
        f"(of {', '.join(PICKS)}: the joint way, unless a simple one was ahead of it on groups left out)."
    )
    if asks is not None:
        plan, accuracy, over = asks.asks.curves.plan(), asks.accuracy, asks.over_one_agent
        metrics |= {"asking.accuracy": accuracy, "asking.accuracy_over_one_agent": over}
        metrics["asking.cost_per_1000"] = asks.spent
        detail = f"by {plan.name}, accuracy {accuracy.estimate:.4f}, {format_interval(over, 4, signed=True)}"
        audits.append(("whom to ask: beats one agent at the same budget", over.low > 0, detail))
        detail = f"by {plan.name}, over {asks.simple}: accuracy {format_interval(asks.over_simple, 4, signed=True)}"
        audits.append(("whom to ask: not behind a simple way", asks.over_simple.low >= -NOT_BEHIND, detail))
        for count, (predicted, right) in asks.reliability.items():
            metrics |= {f"asking.after_{count}.said": predicted, f"asking.after_{count}.right": right}
        standing = standing_way(asks.asks.curves.settings, bool(fitted.agents.leading))
        summary += (
            f" Whom to ask is decided by the {standing}, or at a budget by another way that was ahead of it there on "
            "groups left out, by more than a standard error, of "
            f"{', '.join(asks.asks.curves.settings)}. By default that is: {plan.name}, for "
            f"{plan.cost:.4g} US dollars for 1,000 questions."
        )
    return Export(
        kind=PANEL_KIND,
        title="Panel: which of several answers to keep, and how sure",
        summary=summary,
        graph=graph,
        inputs={INPUT: rows},
        expected={PROBABILITY: expected},
        contract={
            "columns": list(class_columns(fitted.agents)),
            "exclusive": fitted.exclusive,
            "same": data.same,
            **({"texts": way_of_same} if (way_of_same := compared_by(data.same)) else {}),
            **({"score_by": data.score_by} if data.score_by else {}),
            **({TOOL_CALLS: True} if data.tool_calls else {}),
            **(data.reading.to_contract() if data.reading else {}),
            SOURCES_KEY: dict(data.sources) if STATED in fitted.agents.signals else {},
            SIGNAL_SOURCES: _signal_sources(fitted.agents, data),
            **({LEFT_OUT_KEY: left_out} if left_out else {}),
            "pick": way,
            "most_answers": K,
            "stops": [list(astuple(setting)) for setting in upper_hull(settings)] if settings else [],
            **({"asks": asks.asks.to_contract()} if asks else {}),
        },
        generator=data.generator,
        training=Training(data.fingerprint, len(data), len(set(data.groups)), seed, command, data.note),
        calibration="conditional logistic regression" if fitted.exclusive else "logistic regression",
        calibrated_on="draws of every size from questions whose odds were made without their group",
        measured=(
            f"Of models fitted without the question's group, in {PANEL_FOLDS} folds and {ORDERS} orders of the answers."
        ),
        metrics=metrics,
        audits=audits,
        packages=("scikit-learn", "lightgbm", "onnxmltools", "onnx"),
        extra=extra,
        reads=[
            f"signals of an answer: {', '.join(fitted.agents.signals) or 'none'}",
            *_sources_told(fitted.agents, data),
            *(
                f"not read: the {kind} that {share:.1%} of the answers have, for no agent has it on half of its "
                f"answers and on {MIN_SIGNAL_ANSWERS} of them"
                for kind, share in left_out.items()
            ),
            f"agents: {', '.join(fitted.agents.names)}",
            f"answers are the same by: {data.same}"
            + (f" ({compared})" if (compared := compared_by(data.same)) else ""),
            *([f"how that was chosen: {data.reading.why}"] if data.reading else []),
        ],
    )


def _signal_sources(agents: AgentProfiles, data: Panels) -> dict[str, str]:
    """Returns the source of each signal that the panel reads; of a confidence whose agents have several, none."""
    source_of_signal = {STATED: source_for(data.sources, None), SCORE: data.score_by}
    return {name: source_of_signal.get(name, FROM_LOGPROBS[0]) for name in agents.signals}


def _sources_told(agents: AgentProfiles, data: Panels) -> Iterator[str]:
    """Yields a line for the card about the source of each confidence that the panel reads."""
    if set(agents.signals) - {STATED, SCORE}:
        yield "log-probabilities of the answer's own tokens"
    if STATED in agents.signals:
        for name in agents.names:
            source = data.sources.get(name, "")
            words = source_in_words(source) if source else "of a source that the data do not name"
            yield f"confidence of {name}: {words}"
    if SCORE in agents.signals:
        yield f"score: of the question {data.score_by!r}"


def sizes_shown(K: int) -> list[int]:
    """Returns the numbers of answers that figures are shown for."""
    return [size for size in (2, 3, 4, 8, 16, 32) if size < K] + [K]


def _metrics(plays: PlayedPanels, way: str) -> dict[str, Interval]:
    K, weights = plays.right[way].shape[2], cluster_weights(plays.groups.tolist())
    metrics: dict[str, Interval] = {}
    for size in sizes_shown(K):
        rows = plays.answers >= size
        row_weights = cluster_weights(plays.groups[rows].tolist()) if not rows.all() else weights
        panel_accuracy, vote = (plays.right[name][:, rows, size - 1].mean(axis=0) for name in (way, MAJORITY))
        metrics[f"accuracy_{size}"] = mean_interval(panel_accuracy, row_weights)
        metrics[f"accuracy_{size}_over_majority"] = mean_interval(panel_accuracy - vote, row_weights)
        y, p = plays.right[JOINT][0, rows, size - 1], plays.score[0, rows, size - 1]
        if y.min() < y.max():
            metrics[f"kept_{size}.auroc"] = interval(auroc, y, p, row_weights)
            metrics[f"kept_{size}.ece"] = ece_interval(y, p, row_weights)
    return metrics


def _audits(plays: PlayedPanels, way: str, sampled: bool) -> list[tuple[str, bool, str]]:
    """Returns whether what is kept is shown to be behind no other way; an interval that allows both is unclear."""
    weights = cluster_weights(plays.groups.tolist())
    accuracy = _by_question(plays, plays.right[way], sampled)
    audits = []
    for other in PICKS:
        if other != way:
            gap = mean_interval(accuracy - _by_question(plays, plays.right[other], sampled), weights)
            passed = gap.low >= -BEHIND
            stands = "" if passed else "behind, " if gap.high < -BEHIND else "unclear, "
            detail = f"{stands}accuracy {format_interval(gap, 4, signed=True)}"
            audits.append((f"not behind {other}", passed, detail))
    return audits


def _golden(fitted: FittedPanel, data: Panels) -> tuple[NDArray[np.float32], Floats]:
    """Returns the rows of one panel, the first with two classes, and the probabilities that the fit gives."""
    answers = data.answers(fitted.agents)
    several = np.flatnonzero(answers.answer_class.max(axis=1) > 0)
    classes, _ = fitted.classes_of(answers.rows(several[:1] if len(several) else np.arange(1)))
    rows = classes.rows[0][np.append(classes.there[0], True)][-MOST_GOLDEN:]
    scores = fitted.classes.score(rows)
    if not fitted.exclusive:
        return rows, np.asarray(1 / (1 + np.exp(-scores)))
    raised = np.exp(scores - scores.max())
    return rows, np.asarray(raised / raised.sum())


def classes_graph(fitted: FittedPanel) -> bytes:
    """Returns the graph of the classes: rows of one panel (c + 1, F) in, P(right) (c + 1, 1) out."""
    graph, width = GraphBuilder(), len(class_columns(fitted.agents))
    score = _linear(graph, fitted.classes, INPUT)
    if not fitted.exclusive:
        graph.add("Sigmoid", score, name=PROBABILITY)
    else:
        top = graph.add("ReduceMax", score, axes=[0], keepdims=1)
        raised = graph.add("Exp", graph.add("Sub", score, top))
        total = graph.add("ReduceSum", raised, graph.constant([0]), keepdims=1)
        graph.add("Div", raised, total, name=PROBABILITY)
    return graph.model({INPUT: width}, (PROBABILITY,))


def gain_graph(trees: Trees, width: int) -> bytes:
    """Returns the graph of the gain: states (n, width) in, the expected gain of asking on (n, 1) out."""
    graph = GraphBuilder()
    trees.add_to(graph, GAIN_INPUT, width, GAIN_OUTPUT)
    return graph.model({GAIN_INPUT: width}, (GAIN_OUTPUT,))


def _linear(graph: GraphBuilder, model: Linear, value: str, name: str = "") -> str:
    weighted = graph.add("MatMul", value, graph.number(model.weights[:, None]))
    return graph.add("Add", weighted, graph.number([[model.intercept]]), name=name)
