"""The recipe of a text reader: words, then hidden states of the text, then an adapter.

Each step is taken only if it beats the step below.
"""

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from metaprobe.checkpoints import Checkpoint, check_target
from metaprobe.eval.answer_table import AnswerTable
from metaprobe.eval.compare import Judged, auroc_gain
from metaprobe.eval.controls import ANSWER, JOINED
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval, paired_difference
from metaprobe.eval.metrics.ranked import Value, auroc, spearman
from metaprobe.eval.results import Family
from metaprobe.probes.features import ALONE
from metaprobe.probes.quality import QualityPredictor
from metaprobe.probes.text import COUNTS, LOGPROBS, SHAPE, SHAPES, TERMS, TEXT_KIND, WORD_BUCKETS, text_rows
from metaprobe.records.activations import Activations
from metaprobe.records.errors import RecordError
from metaprobe.records.extras import require
from metaprobe.records.types import HIDDEN
from metaprobe.training.calibrators import Calibrator, Platt, calibrator_on, fit_platt, mean_error
from metaprobe.training.evidence import INVERTED, Evidence, Scores
from metaprobe.training.export import NO_FLAGS, Export, GraphBuilder, write_checkpoint, writes
from metaprobe.training.folds import Roles, Rows, final_roles, group_folds
from metaprobe.training.linear_probe import LinearProbe, fit_linear_probe, unseen_probe_scores
from metaprobe.training.methods import Fitted, blend_weights, control_methods, fit_word_weights, terms_of
from metaprobe.training.stored_states import InMemory, States
from metaprobe.training.study import RANK_RESAMPLES, CrossFit, crossfit, measure_held_out
from metaprobe.training.text_data import TextData, grouped_by_content, load_texts
from metaprobe.training.thresholds import ScoredAnswers, flagging_of
from metaprobe.training.training_options import AdapterOptions, TextOptions, WrongOptions, question_texts

if TYPE_CHECKING:
    from metaprobe.training.adapter import MadeAdapter

UNSEEN_FOLDS = 5
"""Number of folds, by group, of the learning rows. Each is scored for the calibrator by a fit on the other folds."""
READER_PENALTIES = (0.3, 1.0, 3.0, 10.0)
"""Values of 1 / penalty of the words' weights that are tried on the selection rows."""
MIN_WORD_ROWS = 2
"""Fewest learning rows that must hold a word for the word to count."""
QUESTION_WEIGHT, SHAPE_WEIGHT = 0.5, 0.3
"""Weights of the question's words and of the text's shape, relative to the answer's words. They were chosen on one data
set (TruthfulQA).
"""
MIN_SQUARE_SUM = 1e-12
"""Smallest sum of squares that a row is divided by, so that a row without words stays 0."""
TERMS_POSITION = "terms"
"""Name of the position that holds the terms of the log-probabilities, if they are read too. The terms have the form of
states of one layer and one position.
"""
WORDS, STATES, BOTH, ADAPTER = "words", "states", "words and states", "adapter"


@dataclass(frozen=True, slots=True, eq=False)
class TextRows:
    """n texts as the reader sees them."""

    counts: Any
    """Damped counts (n, 2 * BUCKETS) as scipy CSR: the words of the answer, then those of the question."""
    shape: NDArray[np.float32]
    """The five numbers of `SHAPES` for each answer (n, 5)."""

    @classmethod
    def of(cls, questions: Sequence[str], answers: Sequence[str]) -> "TextRows":
        """Returns the texts, read by the reader's own function."""
        sparse = require("scipy.sparse", "fit")
        inputs = text_rows(questions, answers)
        row, column = np.nonzero(inputs[COUNTS])
        places = (row, inputs[TERMS][row, column])
        counts = sparse.csr_matrix((inputs[COUNTS][row, column], places), shape=(len(answers), 2 * WORD_BUCKETS))
        return cls(counts, inputs[SHAPE])


@dataclass(frozen=True, slots=True, eq=False)
class WordsModel:
    """Logistic regression on TF-IDF of the answer's words, of the question's words, and on the text's shape."""

    idf: NDArray[np.float32]
    """Inverse document frequency of each word bucket (2 * BUCKETS,); 0 for words that do not count."""
    weights: NDArray[np.float32]
    """Weight of each word bucket (2 * BUCKETS,)."""
    mean: Scores
    scale: Scores
    shape_weights: Scores
    """Weight of each number of the shape (5,). `mean` and `scale` have the same form."""
    intercept: float
    strength: float
    """Value of 1 / penalty of the fit."""

    @classmethod
    def fit(cls, texts: TextRows, y: NDArray[np.int64], rows: Rows, strength: float) -> "WordsModel":
        """Returns the model of these rows; `strength` is 1 / penalty."""
        sparse = require("scipy.sparse", "fit")
        seen = np.bincount(texts.counts[rows].indices, minlength=2 * WORD_BUCKETS)
        idf = np.where(seen >= MIN_WORD_ROWS, np.log((1 + len(rows)) / (1 + seen)) + 1, 0).astype(np.float32)
        shape = texts.shape[rows].astype(np.float64)
        mean, spread = shape.mean(axis=0), shape.std(axis=0)
        scale = np.where(spread > 0, spread, 1.0)
        used = np.flatnonzero(idf)
        X = sparse.hstack([_tfidf(texts.counts[rows], idf)[:, used], SHAPE_WEIGHT * (shape - mean) / scale]).tocsr()
        model = fit_word_weights(X, y[rows], strength, rounds=500)
        weights = np.zeros(2 * WORD_BUCKETS, dtype=np.float32)
        weights[used] = model.coef_[0, : len(used)]
        return cls(
            idf, weights, mean, scale, SHAPE_WEIGHT * model.coef_[0, len(used) :], float(model.intercept_[0]), strength
        )

    def score(self, texts: TextRows) -> Scores:
        """Returns log-odds (n,), not yet calibrated."""
        words = _tfidf(texts.counts, self.idf) @ self.weights.astype(np.float64)
        shape = ((texts.shape - self.mean) / self.scale) @ self.shape_weights
        return np.asarray(words + shape + self.intercept, dtype=np.float64)

    def add_to(self, graph: GraphBuilder) -> str:
        """Adds the computation of `score` to a graph; returns the name of the log-odds (n, 1)."""
        unit, axis = graph.number(1.0), graph.constant([1])
        value = graph.add("Mul", COUNTS, graph.add("Gather", graph.number(self.idf), TERMS))
        square = graph.add("Mul", value, value)
        is_question = graph.cast(graph.add("Greater", TERMS, graph.constant(WORD_BUCKETS - 1)), np.float32)
        is_answer = graph.add("Sub", unit, is_question)
        scaled = []
        for part, weight in ((is_question, QUESTION_WEIGHT), (is_answer, 1.0)):
            total = graph.add("ReduceSum", graph.add("Mul", square, part), axis, keepdims=1)
            log = graph.add(
                "Log", graph.add("Max", total, graph.number(MIN_SQUARE_SUM))
            )  # 1 / root, by operators of any graph
            scaled.append(graph.add("Mul", part, graph.add("Exp", graph.add("Mul", log, graph.number(-0.5)))))
            scaled[-1] = graph.add("Mul", scaled[-1], graph.number(weight))
        length = graph.add("Add", *scaled)
        weighted = graph.add(
            "Mul", graph.add("Mul", value, length), graph.add("Gather", graph.number(self.weights), TERMS)
        )
        words = graph.add("ReduceSum", weighted, axis, keepdims=1)
        centred = graph.add("Div", graph.add("Sub", SHAPE, graph.number(self.mean)), graph.number(self.scale))
        shape = graph.add("MatMul", centred, graph.number(self.shape_weights[:, None]))
        return graph.add("Add", graph.add("Add", words, shape), graph.number(self.intercept))


def _tfidf(counts: Any, idf: NDArray[np.float32]) -> Any:
    """Returns counts times idf. In each row the answer part has length 1, the question part `QUESTION_WEIGHT`."""
    sparse = require("scipy.sparse", "fit")
    X = (counts @ sparse.diags(idf)).tocsr()
    parts = []
    for part, weight in ((X[:, :WORD_BUCKETS], 1.0), (X[:, WORD_BUCKETS:], QUESTION_WEIGHT)):
        total = np.asarray(part.multiply(part).sum(axis=1)).ravel()
        parts.append(sparse.diags(weight / np.sqrt(np.maximum(total, MIN_SQUARE_SUM))) @ part)
    return sparse.hstack(parts).tocsr()


@dataclass(frozen=True, slots=True, eq=False)
class TextModel:
    """The fitted parts: words, a probe on states, or both, joined by weights of their calibrated log-odds."""

    words: WordsModel | None
    probe: LinearProbe | None
    platts: tuple[Platt, ...] = ()
    """Calibration of the words' score and of the states' score, if the model has both."""
    weights: tuple[float, ...] = ()

    def score(self, texts: TextRows, states: States | None) -> Scores:
        """Returns log-odds (n,)."""
        parts = [self.words.score(texts)] if self.words else []
        parts += [self.probe.score(states)] if self.probe and states else []
        return self.joined(parts)

    def joined(self, parts: Sequence[Scores]) -> Scores:
        """Returns the log-odds (n,) joined from the parts' scores (n,) each; NaN if a part has no score."""
        if not self.weights:
            return parts[0]
        joined = zip(self.weights, self.platts, parts, strict=True)
        return np.asarray(sum(weight * platt.logit(part) for weight, platt, part in joined), dtype=np.float64)

    def add_to(self, graph: GraphBuilder) -> str:
        """Adds the computation of `score` to a graph; returns the name of the log-odds (n, 1)."""
        parts = [self.words.add_to(graph)] if self.words else []
        if (probe := self.probe) is not None:
            centred = graph.add("Div", graph.add("Sub", HIDDEN, graph.number(probe.mean)), graph.number(probe.scale))
            score = graph.add("MatMul", centred, graph.number(probe.weights[:, None]))
            parts.append(graph.add("Add", score, graph.number(probe.intercept)))
        for place, (weight, platt) in enumerate(zip(self.weights, self.platts, strict=True)):
            scaled = graph.add("Mul", parts[place], graph.number(weight * platt.slope))
            parts[place] = graph.add("Add", scaled, graph.number(weight * platt.intercept))
        return graph.add("Add", *parts) if len(parts) > 1 else parts[0]


@dataclass(frozen=True, slots=True, eq=False)
class TextMethod:
    """One step of the ladder of text readers."""

    name: str
    texts: TextRows
    states: States | None = None
    family: Family = "learned"
    fitted: bool = True

    def model(self, evidence: Evidence, roles: Roles, *, seed: int) -> TextModel:
        """Returns the model fitted on the train and selection rows of these roles."""
        table, words = evidence.table, None
        if self.name != STATES:  # fit words at the penalty that is best on the selection rows
            y, selection = table.y, roles.selection
            selection_texts = TextRows(self.texts.counts[selection], self.texts.shape[selection])
            scores_of_penalty = {
                penalty: WordsModel.fit(self.texts, y, roles.train, penalty).score(selection_texts)
                for penalty in READER_PENALTIES
            }
            best_penalty = max(
                READER_PENALTIES, key=lambda penalty: float(auroc(y[selection], scores_of_penalty[penalty]))
            )
            words = WordsModel.fit(self.texts, y, roles.learning, best_penalty)
        if self.states is None:
            return TextModel(words, None)
        groups, positions = table.groups.tolist(), self.states.positions
        probe = fit_linear_probe(self.states, table.y, groups, roles, positions=positions, seed=seed)
        if words is None:
            return TextModel(None, probe)
        rows, y = roles.calibration, table.y[roles.calibration]
        parts = [words.score(self.texts)[rows], probe.score(self.states, rows)]
        platts = tuple(fit_platt(part, y) for part in parts)
        logits = np.array([platt.logit(part) for platt, part in zip(platts, parts, strict=True)])
        return TextModel(words, probe, platts, tuple(blend_weights(logits, y).tolist()))

    def unseen(self, model: TextModel, table: AnswerTable, roles: Roles, *, seed: int) -> Scores:
        """Returns a score (n,) of each seen row by a fit that saw no answer of the row's group; NaN for other rows.

        Calibration rows have the scores of `model`, which was fitted in these roles. Learning rows have scores of the
        same words and states at the same penalties, fitted on the other folds; NaN if they have too few groups for
        folds. If the model reads words and states, the weights that join them are the model's.
        """
        y, groups, parts = table.y, table.groups.tolist(), list[Scores]()
        with suppress(RecordError):  # too few groups
            if (words := model.words) is not None:
                scores = np.full(len(y), np.nan)
                scores[roles.calibration] = words.score(self.texts)[roles.calibration]
                for rest, part in group_folds(roles.learning, groups, y, UNSEEN_FOLDS, seed + 2):
                    scores[part] = WordsModel.fit(self.texts, y, rest, words.strength).score(self.texts)[part]
                parts.append(scores)
            if model.probe is not None and self.states is not None:
                parts.append(unseen_probe_scores(model.probe, self.states, y, groups, roles, seed=seed))
            return model.joined(parts)
        all_scores = model.score(self.texts, self.states)
        return np.where(np.isin(np.arange(len(y)), roles.calibration), all_scores, np.nan)

    def fit(self, evidence: Evidence, roles: Roles, *, seed: int) -> Fitted:
        model = self.model(evidence, roles, seed=seed)
        scores, calibration = model.score(self.texts, self.states), roles.calibration
        # This AUROC chooses nothing, because steps of the ladder are compared on held-out rows.
        selected = float(auroc(evidence.table.y[calibration], scores[calibration]))
        unseen = self.unseen(model, evidence.table, roles, seed=seed)
        return Fitted(lambda rows: scores[rows], selected, unseen=unseen)


@dataclass(frozen=True, slots=True)
class TextLadderStep:
    """Gain of a step of the ladder over the step that was reached before."""

    name: str
    against: str
    """Name of the step before."""
    gain: Interval
    """Gain in AUROC over the step before, on held-out answers, paired."""

    @property
    def taken(self) -> bool:
        return self.gain.low > 0

    def __str__(self) -> str:
        verdict = "taken" if self.taken else "not taken: the ladder ends below it"
        gain = f"{self.gain.estimate:+.3f} [{self.gain.low:+.3f}, {self.gain.high:+.3f}]"
        return f"{self.name} over {self.against}: AUROC {gain}, {verdict}"


def climb(evidence: Evidence, fits: CrossFit, methods: Sequence[TextMethod]) -> tuple[TextMethod, list[TextLadderStep]]:
    """Returns the step that is reached, and the gain of each step.

    A step is taken if the interval of its gain over the step reached before lies above 0.
    """
    reached, steps = methods[0], []
    for method in methods[1:]:
        gain = auroc_gain(evidence.table, fits[method.name], fits[reached.name], fits.fold)
        steps.append(TextLadderStep(method.name, reached.name, gain))
        if steps[-1].taken:
            reached = method
    return reached, steps


def terms_as_states(texts: TextData) -> InMemory:
    """Returns the terms of the answers' log-probabilities in the form of states of one layer and one position.

    Raises `WrongOptions` if the answers have no log-probabilities.
    """
    table = texts.table
    if not table.measured:
        raise WrongOptions(
            "with_logprobs: the answers have no log-probabilities; leave the option out to read words alone"
        )
    values = terms_of(table)[:, None, None, :]
    return InMemory(Activations(tuple(table.call_ids.tolist()), values, (0,), (TERMS_POSITION,)))


def read_states(texts: TextData, model: str, layers: str) -> tuple[InMemory, dict[str, str]]:
    """Returns the states of a local model over the texts, and the contract's entry that names the model.

    Raises `MissingExtra` without the extra `train`, and `LLMError` if the model cannot be loaded or read the texts.
    """
    reader = require("metaprobe.llms.text_pairs", "train").PairReader(model)
    numbers, call_ids = reader.layers(layers), tuple(texts.table.call_ids.tolist())
    values = reader.states(texts.prompts, texts.answers, numbers, reader.positions)
    states = InMemory(Activations(call_ids, values, numbers, reader.positions))
    return states, {"model": model, "revision": reader.llm.revision}


def adapter_step(texts: TextData, reached: TextMethod, options: TextOptions) -> tuple["MadeAdapter", TextLadderStep]:
    """Trains an adapter. Returns the adapter, and its gain over the method reached so far, fitted on the same split."""
    shared_options = {
        name: getattr(options, name) for name in ("out", "target", "seed", "questions", "on_step", "stage", "agent")
    }
    adapter_options = AdapterOptions(
        **shared_options, llm=options.adapter, when="after", command=options.recorded("train_text")
    )
    adapter = require("metaprobe.training.adapter", "train").make_adapter(texts, adapter_options)
    roles = require("metaprobe.training.adapter", "train").adapter_roles(texts.table, seed=options.seed)
    reached_scores = reached.fit(texts.evidence, roles, seed=options.seed).score(roles.test)
    scores = [(ADAPTER, adapter.probability["after"]), (reached.name, reached_scores)]
    judged_adapter, judged_reached = (Judged(name, "learned", values, values, 1.0) for name, values in scores)
    return adapter, TextLadderStep(
        ADAPTER, reached.name, auroc_gain(texts.table.rows(roles.test), judged_adapter, judged_reached)
    )


@writes(TEXT_KIND)
def train_text(data: Sequence[str | Path], options: TextOptions) -> Checkpoint:
    """Returns the reader's checkpoint, fitted on the labelled texts of these files of lines and run stores.

    With `options.adapter` it is an adapter's checkpoint, if the adapter beats the other steps.

    Raises `RecordError` if the texts do not suffice, and `MissingExtra` without the extra `fit`, or without the extras
    that states and an adapter need.
    """
    # Refuse wrong options.
    require("sklearn", "fit")
    if options.adapter:
        require("peft", "train")
        check_target(
            options.out, ADAPTER
        )  # checked before hours of training, because the checkpoint may be of either kind
        if os.environ.get("WORLD_SIZE", "1") != "1":
            raise WrongOptions("adapter: several processes train together; expected one, or `metaprobe train adapter`")
    target, report_step = options.target, options.on_step
    if target in INVERTED:
        raise WrongOptions(f"target {target}: a reader gives the probability of what is good; label its opposite")
    texts = grouped_by_content(load_texts(data, target=target, stage=options.stage, agent=options.agent))
    threshold_options = [*options.flags, *(["adapter"] if options.adapter else [])]
    if texts.learnable_levels and threshold_options:
        raise WrongOptions(f"{threshold_options[0]} is for labels of 0 and 1, and {target} has levels: leave it out")
    if options.flags and options.adapter:
        raise WrongOptions(
            f"{threshold_options[0]} sets a threshold, and an adapter has none: leave out adapter or "
            f"{threshold_options[0]}"
        )
    # The ladder of readers, and its controls.
    evidence, table = texts.evidence, texts.table
    reader_rows = TextRows.of(texts.prompts, texts.answers)
    ladder = [TextMethod(WORDS, reader_rows)]
    states: InMemory | None = None
    contract: dict[str, str] = {}
    if options.read_by:
        report_step(f"read the texts with {options.read_by}")
        states, contract = read_states(texts, options.read_by, options.layers)
        ladder += [TextMethod(BOTH, reader_rows, states)]
    if options.with_logprobs:
        states = terms_as_states(texts)
        ladder += [TextMethod(JOINED, reader_rows, states)]
    # The control on the answer's words is left out, because the reader's first step contains it. So is the control on
    # words and log-probabilities, if the reader reads both.
    own_methods = {ANSWER, JOINED} if options.with_logprobs else {ANSWER}
    controls = [method for method in control_methods(evidence) if method.name not in own_methods]
    methods = [*controls, *ladder, *([TextMethod(STATES, reader_rows, states)] if options.read_by else [])]
    # Climb the ladder on held-out answers.
    fits = crossfit(evidence, methods, folds=options.folds, seed=options.seed, on_step=report_step)
    method, gained_steps = climb(evidence, fits, ladder)
    if options.with_logprobs:  # the user asked for log-probabilities, so they are read even if they show no gain
        method = ladder[-1]
    if options.adapter:
        adapter, step = adapter_step(texts, method, options)
        gained_steps.append(step)
        if not step.taken:
            adapter.leave()
    for line in map(str, gained_steps):
        options.on_line(line)
    if options.adapter and gained_steps[-1].taken:
        return adapter.write(*map(str, gained_steps))
    # Fit the reached step on all groups, and write it.
    report_step("audit and export")
    roles = final_roles(table.groups.tolist(), table.y, seed=options.seed)
    head = _fit_head(texts, method, roles, seed=options.seed)
    metrics, report = measure_held_out(evidence, fits, method, options.seed)
    stored = NO_FLAGS
    if not texts.learnable_levels:
        held_out, fitted = (fits[method.name].probability, fits.rank_shares[method.name]), head.steps[0]
        answers = ScoredAnswers.of(table, roles.calibration, fitted.scores, fitted.calibrator, *held_out)
        stored = flagging_of(answers, options.as_flags(), seed=options.seed)
    else:
        metrics |= _figures_of_levels(texts, method, fits, options)
    golden_rows, inputs = _golden_rows(texts, states, head)
    head_line = f"{target}: {'expected level' if texts.learnable_levels else 'a probability'}, by {method.name}"
    return write_checkpoint(
        options.out,
        Export(
            kind=TEXT_KIND,
            title=f"Text reader: {target}",
            summary=(
                f"{'Expected level' if texts.learnable_levels else 'Probability'} of {target}, read from question and "
                "answer "
                + (
                    f"and log-probabilities by {method.name}."
                    if options.with_logprobs
                    else f"alone by {method.name}{' (logistic)' if method.name == WORDS else ''}; no log-probabilities."
                )
            ),
            graph=head.graph(target),
            inputs=inputs,
            expected={name: values[golden_rows] for name, values in head.outputs(target).items()},
            contract={
                "target": target,
                "buckets": WORD_BUCKETS,
                "shapes": list(SHAPES),
                **({"scale": head.scale} if texts.learnable_levels else {}),
                **({LOGPROBS: ALONE} if options.with_logprobs else {}),
                **({"states": {**contract, **head.place}} if head.place and not options.with_logprobs else {}),
                **question_texts(options.questions, target),
            },
            **evidence.origin(options.seed, options.recorded("train_text")),
            calibration="platt" if texts.learnable_levels else head.steps[0].calibrator.name,
            metrics=metrics,
            audits=report.audits,
            not_audited=report.skipped,
            stored=stored,
            heads=[f"{head_line}{stored.lacking}", *map(str, gained_steps)],
            packages=("onnx", "scikit-learn"),
        ),
    )


@dataclass(frozen=True, slots=True, eq=False)
class FittedStep:
    """One fitted model with its calibrator: P(y = 1), or P(level >= k)."""

    model: TextModel
    calibrator: Calibrator
    scores: Scores
    """Raw scores (n,) of all rows."""


@dataclass(frozen=True, slots=True, eq=False)
class TextHead:
    """The value of the target: a probability, or the lowest level plus P(level >= k) of every level above it."""

    steps: tuple[FittedStep, ...]
    base: float
    """0 for a probability; else the lowest level, plus the shares of the steps for which nothing was fitted."""
    scale: list[float]
    levels: tuple[int, ...] = ()
    """Level that is reached by each fitted step; empty for a probability."""
    shares: Mapping[int, float] = field(default_factory=dict)
    """Maps a level to its share of the training rows, for steps for which nothing was fitted."""

    @property
    def value(self) -> Scores:
        """Value of the target for all rows, (n,)."""
        return np.asarray(self.base + sum(s.calibrator.probability(s.scores) for s in self.steps), dtype=np.float64)

    def outputs(self, target: str) -> dict[str, Scores]:
        """Maps the name of an output to its values (n,) for all rows: the target, and P(level >= k) of each level."""
        outputs = {target: self.value}
        for level, step in zip(self.levels, self.steps if self.levels else (), strict=True):
            outputs[QualityPredictor.level_output(target, level)] = step.calibrator.probability(step.scores)
        for level, share in self.shares.items():
            outputs[QualityPredictor.level_output(target, level)] = np.full(len(self.value), share)
        return outputs

    @property
    def place(self) -> dict[str, Any]:
        """Layer and position of the states that are read; empty if no states are read."""
        probe = self.steps[0].model.probe
        return {} if probe is None else {"layer": probe.layers[0], "position": probe.position}

    def graph(self, target: str) -> bytes:
        """Returns the head for ONNX."""
        graph = GraphBuilder()
        names = [QualityPredictor.level_output(target, level) for level in self.levels] or [""]
        parts = [
            step.calibrator.add_to(graph, step.model.add_to(graph), name)
            for name, step in zip(names, self.steps, strict=True)
        ]
        graph.add("Sum", graph.number([[self.base]]), *parts, name=target)
        for level, share in self.shares.items():
            zero = graph.add("Mul", parts[0], graph.number(0.0))
            graph.add("Add", zero, graph.number(share), name=QualityPredictor.level_output(target, level))
        inputs: dict[str, int | tuple[Any, int | None]] = {TERMS: (np.int64, None), COUNTS: (np.float32, None)}
        inputs[SHAPE] = len(SHAPES)
        if (probe := self.steps[0].model.probe) is not None:
            inputs[HIDDEN] = len(probe.weights)
        return graph.model(inputs, list(self.outputs(target)))


def _fit_head(texts: TextData, method: TextMethod, roles: Roles, *, seed: int) -> TextHead:
    """Returns the head, fitted in these roles. All steps read the layer and position that the first step chose."""
    grades, evidence = texts.grades, texts.evidence
    fitted_steps: list[FittedStep] = []
    for step in texts.learnable_levels or (1,):
        table = replace(texts.table, y=(grades >= step).astype(np.int64))
        method_at_layer, probe = method, fitted_steps[0].model.probe if fitted_steps else None
        if method.states is not None and probe is not None:  # only the states of the first step's layer and position
            states = method.states.read(probe.layers[0], probe.position)
            names = tuple(map(str, range(len(states))))
            layer_states = Activations(names, states[:, None, None], probe.layers, (probe.position,))
            method_at_layer = replace(method, states=InMemory(layer_states))
        model = method_at_layer.model(replace(evidence, table=table), roles, seed=seed)
        scores, unseen = (
            model.score(method.texts, method.states),
            method_at_layer.unseen(model, table, roles, seed=seed),
        )
        rows = np.flatnonzero(np.isfinite(unseen))
        calibrator = (
            fit_platt(unseen[rows], table.y[rows])
            if texts.learnable_levels
            else calibrator_on(rows, unseen, table, seed)
        )
        fitted_steps.append(FittedStep(model, calibrator, scores))
    if not texts.learnable_levels:
        return TextHead(tuple(fitted_steps), 0.0, [0.0, 1.0])
    low, high = int(grades.min()), int(grades.max())
    unlearned_levels = [level for level in range(low + 1, high + 1) if level not in texts.learnable_levels]
    shares = {level: float((grades[roles.seen] >= level).mean()) for level in unlearned_levels}
    return TextHead(
        tuple(fitted_steps), low + sum(shares.values()), [float(low), float(high)], texts.learnable_levels, shares
    )


def _figures_of_levels(
    texts: TextData, method: TextMethod, fits: CrossFit, options: TextOptions
) -> Mapping[str, Interval]:
    """Returns rank correlation and root mean square error of the expected level in the folds, and the gain over a
    constant.
    """
    expected_levels, constant_levels = np.full(len(texts.grades), np.nan), np.full(len(texts.grades), np.nan)
    for fold_index, roles in enumerate(fits.roles):
        options.on_step(f"levels, fold {fold_index + 1} of {len(fits.roles)}")
        expected_levels[roles.test] = _fit_head(texts, method, roles, seed=options.seed).value[roles.test]
        constant_levels[roles.test] = texts.grades[roles.seen].mean()
    weights = cluster_weights(texts.table.groups.tolist(), RANK_RESAMPLES, options.seed)
    return {
        "spearman": interval(spearman, texts.grades, expected_levels, weights),
        "rmse": interval(rmse, texts.grades, expected_levels, weights),
        "rmse_of_a_constant_minus_rmse": paired_difference(
            rmse, texts.grades, constant_levels, expected_levels, weights
        ),
    }


def rmse(y: ArrayLike, score: ArrayLike, weight: ArrayLike | None = None) -> Value:
    """Returns the root of the mean of (y - score) squared."""
    mean = mean_error(np.square, y, score, weight)
    return math.sqrt(mean) if isinstance(mean, float) else np.sqrt(mean)


def _golden_rows(texts: TextData, states: States | None, head: TextHead) -> tuple[Rows, dict[str, NDArray[Any]]]:
    """Returns the rows of a few short texts, and their inputs. Short texts keep the checkpoint small."""
    lengths = [len(prompt) + len(answer) for prompt, answer in zip(texts.prompts, texts.answers, strict=True)]
    rows = np.argsort(lengths, kind="stable")[: max(len(lengths) // 4, 8) : max(len(lengths) // 32, 1)][:8]
    inputs = text_rows([texts.prompts[i] for i in rows], [texts.answers[i] for i in rows])
    if states is not None and (probe := head.steps[0].model.probe) is not None:
        inputs[HIDDEN] = probe.read(states, rows)
    return rows, inputs
