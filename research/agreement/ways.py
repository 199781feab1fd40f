"""Scores single answers on questions left out, by agreement, by labels and by free numbers: one draw of questions.

An answer that did not end by itself is ranked last by each way, so that no way is ahead because it reads that an answer
was cut.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from metaprobe.eval.answer_table import group_of
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.probes.features import SCALED, TERM_NAMES, features, schema
from metaprobe.records.errors import RecordError
from metaprobe.records.reading import STOP
from metaprobe.records.store import RunStore
from metaprobe.records.types import Run
from metaprobe.training import agreement
from metaprobe.training.agreement import agreement_pairs
from metaprobe.training.base_rates import AGREEMENT_SD, fit_scale
from metaprobe.training.calibrators import fit_platt, log_odds_of, sigmoid
from metaprobe.training.folds import final_roles, join_groups
from metaprobe.training.ladder import ALL_TERMS, USUAL_BAR, WHOLE, Bar, LadderRows
from metaprobe.training.methods import agreement_ladder, make_tfidf
from metaprobe.training.recipes.train_quality import RunProbability, fit_probability
from metaprobe.training.rescale import MIN_RESCALE_LABELS, MIN_RESCALE_LABELS_OF_A_KIND

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

LEARN_FROM = 200
"""Questions that may be learned from; all others are the test questions of the draw."""
SAMPLINGS = ((100, 2), (50, 4))
"""Questions, and sampled answers of each: 200 answers."""
MANY = (50, 8)
"""Questions and answers of the trial of partners."""
PARTNERS = (1, 2, 4, 7)
"""Other answers that each answer is compared with, in the trial."""
LABELS = (25, 50, 100, 200)
"""Labelled answers, each to a question of its own while there are enough questions."""
FEW_LABELS = (25, 50)
"""Labels by which agreement is adapted."""
FREE = tuple(WHOLE.free)
"""The free numbers of the ladder, higher for answers that are likelier right: a shorter answer counts as likelier
right."""
USUAL_FREE = SCALED
"""The free number that the product uses where nothing can be learned. It is fixed beforehand, and needs no label."""
BEST_FREE = "best free number by 50 labels"
CUT, LENGTH, FORM, WORDS = (
    "being cut",
    "length, 200 labels",
    "form of the question, 200 labels",
    "words of the question, 200 labels",
)
SHUFFLED = "shuffled"
CHOOSING = "steps chosen"
"""The ladder's linear steps are compared, as they are where there are more answers."""
NONE_KEPT = "no answers kept back"
"""The weights are fitted on all answers; the product keeps a fifth of the groups back for the calibration."""
ALL_CHOOSE = Bar(min_rows=0)
LAST = -1e9
"""Score of an answer that was cut: below each score that a way gives."""


def agreement_way(questions: int, samples: int, kind: str = "") -> str:
    """Returns the name of what is learned from the agreement of so many samples of so many questions."""
    return f"agreement, {questions} x {samples}{', ' * bool(kind)}{kind}"


def labels_way(labels: int, kind: str = "") -> str:
    """Returns the name of what is learned from so many labels."""
    return f"{labels} labels{', ' * bool(kind)}{kind}"


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """The n answers of one store."""

    runs: tuple[Run, ...]
    """One for each question."""
    call_ids: NDArray[np.str_]
    """(n,)"""
    question: Rows
    """(n,): place of each answer's question among the runs."""
    groups: NDArray[np.str_]
    """(n,): questions that repeat are of one group."""
    y: NDArray[np.int64]
    """(n,): 1 for right answers."""
    ended: NDArray[np.bool_]
    """(n,): whether the answer ended by itself."""
    X: NDArray[np.float32]
    """(n, 7): terms of the log-probabilities."""
    free: dict[str, Floats]
    """Free number -> (n,)."""
    tokens: NDArray[np.int64]
    """(n,)"""


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """The scores of one draw of questions on its t test answers."""

    test: Rows
    """(t,): places of the test answers."""
    scores: dict[str, Floats]
    """Way -> (t,): higher for answers that are likelier right. Cut answers have `LAST`."""
    probabilities: dict[str, Floats]
    """Way -> (t,): probability of being right; of agreement alone, of being said again."""
    reached: dict[str, str]
    """Way that climbs the ladder -> the step that it reached; `REFUSED` where the data do not suffice."""


REFUSED = "refused"


def read_samples(path: Path) -> Samples:
    """Returns the labelled answers of a store of samples that have log-probabilities."""
    runs, call_ids, question, groups, y, ended, logprobs = [], [], [], [], [], [], []
    for run in RunStore(path).runs(hidden=False):
        calls = []
        for call in run.calls:
            label = run.label("correct", call.id)
            if call.stage != "answer" or label is None or call.logprobs is None or not len(call.logprobs):
                continue
            calls.append(call)
            call_ids.append(call.id)
            question.append(len(runs))
            groups.append(group_of(run.item))
            y.append(int(label))
            ended.append(call.finish_reason == STOP and bool(call.text.strip()))
            logprobs.append(np.asarray(call.logprobs, dtype=np.float32))
        if calls:
            runs.append(replace(run, calls=tuple(calls)))
    texts = [runs[place].item.question for place in question]
    length = np.array([len(values) for values in logprobs])
    X = features(schema("full+terms"), logprobs)[:, -len(TERM_NAMES) :]
    free = {name: -(WHOLE.of(X) @ np.array(weights)) for name, weights in WHOLE.free.items()}
    return Samples(
        tuple(runs),
        np.array(call_ids),
        np.array(question),
        join_groups(groups, texts)[0],
        np.array(y),
        np.array(ended),
        X,
        free,
        length,
    )


def draw_of(samples: Samples, seed: int, *, partners: bool = False) -> Draw:
    """Returns one draw: questions are split by group, each way learns from its share, all score the same answers.

    Args:
        samples: of one store.
        seed: of the draw.
        partners: whether the number of partners is tried as well.
    """
    return _Drawing(samples, seed).draw(partners=partners)


class _Drawing:
    """One draw while it is made."""

    def __init__(self, samples: Samples, seed: int) -> None:
        self.samples, self.seed = samples, seed
        self.rng = np.random.default_rng(seed)
        group_of_question = dict(zip(samples.question.tolist(), samples.groups.tolist(), strict=True))
        by_group: dict[str, list[int]] = {}
        for question, group in group_of_question.items():
            by_group.setdefault(group, []).append(question)
        names = sorted(by_group)
        order = [by_group[names[place]] for place in self.rng.permutation(len(names))]
        seen: list[int] = []
        while len(seen) < LEARN_FROM:
            seen += order.pop(0)
        self.seen = seen
        self.test = np.flatnonzero(~np.isin(samples.question, seen))
        self.answers = {q: self.rng.permutation(np.flatnonzero(samples.question == q)) for q in seen}
        self.scores: dict[str, Floats] = {}
        self.probabilities: dict[str, Floats] = {}
        self.reached: dict[str, str] = {}
        self.heads: dict[str, RunProbability] = {}

    def draw(self, *, partners: bool) -> Draw:
        """Makes all ways."""
        for name in FREE:
            self._note(name, self.samples.free[name][self.test])
        for questions, count in SAMPLINGS:
            self._agreement(questions, count)
        for count in LABELS:
            self._labels(count)
        for count in FEW_LABELS:
            self._adapted(count)
        self._controls()
        if partners:
            usual = agreement.MAX_PARTNERS
            for number in PARTNERS:
                agreement.MAX_PARTNERS = number
                rows = self._pairs(*MANY)
                way = agreement_way(*MANY, f"{number} partners")
                self._learn(way, rows, agreement_ladder(MANY[0] * MANY[1]).bar)
            agreement.MAX_PARTNERS = usual
        return Draw(self.test, self.scores, self.probabilities, self.reached)

    def _note(self, way: str, scores: Floats) -> None:
        self.scores[way] = np.where(self.samples.ended[self.test], scores, LAST)

    def _agreement(self, questions: int, count: int) -> None:
        """Learns from agreement, by each recipe, and from the agreement of other questions."""
        rows, way = self._pairs(questions, count), agreement_way(questions, count)
        self._learn(way, rows, agreement_ladder(questions * count).bar)
        self._learn(agreement_way(questions, count, CHOOSING), rows, ALL_CHOOSE)
        self._learn(agreement_way(questions, count, ALL_TERMS), rows, only=ALL_TERMS)
        self._learn(
            agreement_way(questions, count, NONE_KEPT), rows, agreement_ladder(questions * count).bar, whole=True
        )
        if (questions, count) == SAMPLINGS[0] and rows is not None:
            mixed = of_other_questions(rows, self.rng)
            self._learn(agreement_way(questions, count, SHUFFLED), mixed, agreement_ladder(questions * count).bar)
            self._learn(agreement_way(questions, count, f"{SHUFFLED}, {ALL_TERMS}"), mixed, only=ALL_TERMS)

    def _pairs(self, questions: int, count: int) -> LadderRows | None:
        """Returns a row for each pair of answers that are compared; None where the product refuses."""
        samples = self.samples
        chosen = np.concatenate([self.answers[q][:count] for q in self.seen[:questions]])
        ids = set(samples.call_ids[chosen].tolist())
        runs = [samples.runs[q] for q in self.seen[:questions]]
        runs = [replace(run, calls=tuple(call for call in run.calls if call.id in ids)) for run in runs]
        try:
            pairs = agreement_pairs(runs)
        except RecordError:
            return None
        places, same = pairs.rows_among(samples.call_ids.tolist())
        return self._rows(places, same)

    def _rows(self, places: Rows, y: NDArray[np.int64]) -> LadderRows:
        samples = self.samples
        return LadderRows(samples.X[places], y, samples.groups[places], np.full(len(places), "run"), TERM_NAMES)

    def _labels(self, count: int) -> None:
        """Learns from so many labels of answers that ended: as the product does, by all steps, and by all terms."""
        chosen = self._labelled(count)
        rows = self._rows(chosen, self.samples.y[chosen])
        self._learn(labels_way(count), rows, USUAL_BAR)
        self._learn(labels_way(count, CHOOSING), rows, ALL_CHOOSE)
        self._learn(labels_way(count, ALL_TERMS), rows, only=ALL_TERMS)
        if count == LABELS[1]:
            self._learn(labels_way(count, NONE_KEPT), rows, USUAL_BAR, whole=True)
            self._learn(labels_way(count, f"{ALL_TERMS}, {NONE_KEPT}"), rows, only=ALL_TERMS, whole=True)

    def _labelled(self, count: int) -> Rows:
        """Returns answers that ended, the first of each question, then the second ones, in the order of the draw."""
        ended = [[place for place in self.answers[q].tolist() if self.samples.ended[place]] for q in self.seen]
        rounds = [[places[turn] for places in ended if len(places) > turn] for turn in range(4)]
        return np.array([place for turn in rounds for place in turn][:count])

    def _learn(
        self, way: str, rows: LadderRows | None, bar: Bar = USUAL_BAR, *, only: str = "", whole: bool = False
    ) -> None:
        """Fits the product's predictor on the rows and scores the test answers.

        Where the product refuses, the scores are those of the free number that a user would stay with.
        """
        X = self.samples.X[self.test]
        try:
            if rows is None or len(np.unique(rows.y)) < 2:
                raise RecordError("nothing to learn")
            roles = final_roles(rows.groups.tolist(), rows.y, seed=self.seed)
            if whole:
                roles = replace(roles, train=np.union1d(roles.train, roles.calibration), calibration=roles.test)
            head = fit_probability(rows, roles, bar=bar, only=only, seed=self.seed)
        except (RecordError, ValueError):
            self._note(way, self.samples.free[SCALED][self.test])
            self.reached[way] = REFUSED
            return
        scores = head.scorer.score(X)
        self._note(way, scores)
        self.probabilities[way] = head.calibrator.probability(scores)
        self.reached[way], self.heads[way] = head.scorer.reached, head

    def _adapted(self, count: int) -> None:
        """Turns agreement into P(right) by labels, and does the same with the free number that the labels prefer."""
        samples, chosen = self.samples, self._labelled(count)
        y = samples.y[chosen]
        best = max(FREE, key=lambda name: float(np.nan_to_num(auroc(y, samples.free[name][chosen]))))
        if count == 50:
            self._note(BEST_FREE, samples.free[best][self.test])
            self.reached[BEST_FREE] = best
        way = f"best free number, {count} labels"
        enough = count >= MIN_RESCALE_LABELS and min(int(y.sum()), count - int(y.sum())) >= MIN_RESCALE_LABELS_OF_A_KIND
        for questions, sampled in SAMPLINGS:
            learned = agreement_way(questions, sampled)
            adapted = f"{learned}, adapted by {count} labels"
            if not enough or learned not in self.probabilities:
                self.reached[adapted] = self.reached[way] = REFUSED
                continue
            before = log_odds_of(self._again(learned, chosen))
            fit = fit_scale(before[:, None], y, np.full(count, "run"), mean_sd=AGREEMENT_SD)
            odds = log_odds_of(self.probabilities[learned]) * fit.weights[0] + fit.rates.mean
            self._note(adapted, odds)
            self.probabilities[adapted] = sigmoid(odds)
            self.reached[adapted] = self.reached[learned]
        if enough:
            platt = fit_platt(samples.free[best][chosen], y, rising=True)
            self._note(way, samples.free[best][self.test])
            self.probabilities[way] = platt.probability(samples.free[best][self.test])
            self.reached[way] = best

    def _again(self, way: str, places: Rows) -> Floats:
        """Returns the probabilities of a way of other answers than the test answers."""
        head = self.heads[way]
        return head.calibrator.probability(head.scorer.score(self.samples.X[places]))

    def _controls(self) -> None:
        """Scores by what is known without log-probabilities, with 200 labels."""
        samples, chosen, test = self.samples, self._labelled(LABELS[-1]), self.test
        self._note(CUT, np.zeros(len(test)))
        y, length = samples.y[chosen], samples.free["length"]
        sign = 1.0 if not auroc(y, length[chosen]) < 0.5 else -1.0
        self._note(LENGTH, sign * length[test])
        texts = [run.item.question for run in samples.runs]
        asked, tested = samples.question[chosen], samples.question[test]
        form = np.array([form_of(text) for text in texts])
        if len(np.unique(y)) < 2:
            return
        model = make_pipeline(StandardScaler(), LogisticRegression(C=0.3)).fit(form[asked], y)
        self._note(FORM, model.decision_function(form)[tested])
        words = make_tfidf(2).fit([texts[place] for place in asked])
        model = LogisticRegression(C=1.0, max_iter=500).fit(words.transform([texts[place] for place in asked]), y)
        self._note(WORDS, model.decision_function(words.transform(texts))[tested])


def of_other_questions(rows: LadderRows, rng: np.random.Generator) -> LadderRows:
    """Returns the rows with the agreement of other questions: the labels of a group go to another one, whole."""
    names, number = np.unique(rows.groups, return_inverse=True)
    labels = [rows.y[number == place] for place in range(len(names))]
    other = rng.permutation(len(names))
    y = np.concatenate([np.resize(labels[other[place]], int((number == place).sum())) for place in range(len(names))])
    order = np.argsort(number, kind="stable")
    mixed = np.empty_like(rows.y)
    mixed[order] = y
    return replace(rows, y=mixed)


def form_of(text: str) -> list[float]:
    """Returns what a question looks like: lengths, numbers, marks."""
    words = text.split()
    digits = sum(character.isdigit() for character in text)
    numbers = sum(any(character.isdigit() for character in word) for word in words)
    return [
        np.log1p(len(text)),
        np.log1p(len(words)),
        len(text) / max(len(words), 1),
        np.log1p(digits),
        np.log1p(numbers),
        float(text.count("?")),
        float(text.count(",")),
        float(text.count(".")),
        float(sum(word[:1].isupper() for word in words)),
        float("\n" in text.strip()),
    ]
