"""Measures probes of hidden states that are taught by agreement, on samples of the embedded model.

    metaprobe collect research.states.asking:SAMPLED --task places --data DATA --llm smollm2-135m --limit 500 \\
        --constant samples=4 --out out/smollm2-places-samples
    metaprobe extract out/smollm2-places-samples --llm smollm2-135m
    python -m research.agreement.states out/smollm2-places-samples

The questions are split in two halves. The prompt is the same for all samples of a question: before the answer, a probe
tells how much the samples will agree.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from metaprobe.eval.metrics.bootstrap import cluster_weights, resampled_interval
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.records.store import RunStore
from metaprobe.training.agreement import agreement_pairs
from metaprobe.training.folds import final_roles
from metaprobe.training.ladder import USUAL_BAR, Bar, LadderRows
from metaprobe.training.methods import agreement_ladder, make_tfidf
from metaprobe.training.recipes.quality import fit_probability
from metaprobe.training.states import ChosenRows, InMemory, OnDisk, fit_linear_probe, load_states
from research.agreement.measure import KEPT, RESAMPLES
from research.agreement.ways import TERM_NAMES, Floats, Rows, Samples, form_of, read_samples
from research.blocks import keep_figures, packed

DRAWS = 10
HALF = 250
"""Questions to learn from; the others are tested on."""
SIZES = ((100, 2), (250, 4))
"""Questions and samples of each that are learned from."""
BEFORE, AFTER = ("prompt_last",), ("answer_mean", "answer_last")
"""Positions that a probe may read before and after the answer."""
TERMS, FORM, WORDS = "terms", "form of the question", "words of the question"
AGREEMENT, LABELS = "agreement", "labels"


class _Halves:
    """One draw: what is learned from one half of the questions, scored on the other."""

    def __init__(self, samples: Samples, states: InMemory | OnDisk, seed: int) -> None:
        self.samples, self.states, self.seed = samples, states, seed
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(samples.runs))
        self.seen = order[:HALF].tolist()
        self.test = np.flatnonzero(~np.isin(samples.question, self.seen) & samples.ended)
        self.answers = {q: rng.permutation(np.flatnonzero(samples.question == q)) for q in self.seen}
        self.scores: dict[str, Floats] = {}

    def run(self) -> dict[str, Floats]:
        """Returns way -> scores of the test answers."""
        samples = self.samples
        for name, values in samples.free.items():
            self.scores[name] = values[self.test]
        for questions, count in SIZES:
            rows = np.concatenate([self.answers[q][:count] for q in self.seen[:questions]])
            rows = rows[samples.ended[rows]]
            ids = set(samples.call_ids[rows].tolist())
            runs = [samples.runs[q] for q in self.seen[:questions]]
            pairs = agreement_pairs(
                [replace(run, calls=tuple(call for call in run.calls if call.id in ids)) for run in runs]
            )
            places, same = pairs.rows_among(samples.call_ids.tolist())
            size = f"{questions} x {count}"
            self._learn(f"{size}, {AGREEMENT}", places, same, agreement_ladder(len(ids)).bar)
            self._learn(f"{size}, {LABELS}", rows, samples.y[rows], USUAL_BAR)
        return self.scores

    def _learn(self, name: str, places: Rows, y: NDArray[np.int64], bar: Bar) -> None:
        """Fits terms, probes before and after the answer, and the question's form and words, on these rows."""
        samples, test = self.samples, self.test
        groups = samples.groups[places]
        roles = final_roles(groups.tolist(), y, seed=self.seed)
        sample = LadderRows(samples.X[places], y, groups, np.full(len(places), "run"), TERM_NAMES)
        head = fit_probability(sample, roles, bar=bar, seed=self.seed)
        self.scores[f"{TERMS}, {name}"] = head.scorer.score(samples.X[test])
        chosen = ChosenRows(self.states, places)
        for when, positions in (("before", BEFORE), ("after", AFTER)):
            there = tuple(position for position in positions if position in self.states.positions)
            probe = fit_linear_probe(chosen, y, groups.tolist(), roles, positions=there, seed=self.seed)
            self.scores[f"states {when}, {name}"] = probe.score(self.states, test)
        texts = [run.item.question for run in samples.runs]
        asked, tested = samples.question[places], samples.question[test]
        form = np.array([form_of(text) for text in texts])
        model = make_pipeline(StandardScaler(), LogisticRegression(C=0.3)).fit(form[asked], y)
        self.scores[f"{FORM}, {name}"] = model.decision_function(form)[tested]
        words = make_tfidf(2).fit([texts[place] for place in asked])
        model = LogisticRegression(C=1.0, max_iter=500).fit(words.transform([texts[place] for place in asked]), y)
        self.scores[f"{WORDS}, {name}"] = model.decision_function(words.transform(texts))[tested]


def figures_of(samples: Samples, draws: Sequence[_Halves]) -> dict[str, Any]:
    """Returns mean AUROC of each way on answers that ended, and paired differences over resamples of questions."""
    names, member = np.unique(samples.groups, return_inverse=True)
    weights = cluster_weights(np.arange(len(names)), RESAMPLES)
    ways = list(draws[0].scores)
    own = {way: np.array([auroc(samples.y[draw.test], draw.scores[way]) for draw in draws]) for way in ways}

    def over(way: str, other: str) -> Any:
        gains = []
        for draw in draws:
            y, weight = samples.y[draw.test], weights[:, member[draw.test]]
            gains.append(np.asarray(auroc(y, draw.scores[way], weight)) - auroc(y, draw.scores[other], weight))
        estimate = float((own[way] - own[other]).mean())
        return packed(resampled_interval(estimate, np.mean(gains, axis=0), weights))

    differences = {}
    for questions, count in SIZES:
        size = f"{questions} x {count}"
        for when in ("after", "before"):
            taught = f"states {when}, {size}, {AGREEMENT}"
            others = [f"states {when}, {size}, {LABELS}", f"{TERMS}, {size}, {AGREEMENT}"]
            others += [f"{FORM}, {size}, {LABELS}", f"{WORDS}, {size}, {LABELS}"]
            differences |= {f"{taught} over {other}": over(taught, other) for other in others}
    return {
        "questions": len(samples.runs),
        "answers": len(samples.y),
        "cut": round(float(1 - samples.ended.mean()), 4),
        "right_of_ended": round(float(samples.y[samples.ended].mean()), 4),
        "draws": len(draws),
        "ways": {way: [round(float(value.mean()), 4), round(float(value.std()), 4)] for way, value in own.items()},
        "over": differences,
    }


@click.command()
@click.argument("store", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--draws", default=DRAWS)
def main(store: Path, draws: int) -> None:
    """Measures the probes on a store of samples with hidden states; keeps the figures beside those of the stores."""
    warnings.simplefilter("ignore")
    samples = read_samples(store)
    states, without = load_states([RunStore(store)], samples.call_ids.tolist())
    if states is None:
        raise click.ClickException(f"{without} answers have no hidden states: run `metaprobe extract {store}`")
    made = []
    for seed in range(draws):
        made.append(_Halves(samples, states, seed))
        made[-1].run()
        keep_figures(KEPT, figures_of(samples, made), "states")
        click.echo(f"draw {seed}")


if __name__ == "__main__":
    main()
