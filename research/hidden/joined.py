"""Two controls of the probes that are no single number: the words of the answer, and free signals joined.

    python -m research.hidden.joined [PAIR ...]

From the answers in recorded/, out of fold by group (five folds), in two ways: a logistic regression on TF-IDF of the
answer's words, and one on five numbers of the log-probabilities, stated confidence, P(true), dimension and level, and
the words of question and answer, each as scores out of folds of its own. Writes docs/measured/probes_joined.json, which
research/hidden/controls.py puts among the controls. Of rows whose answers are not recorded nothing is said.
"""

from itertools import product
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from metaprobe.eval.answer_table import group_of
from metaprobe.eval.metrics.bootstrap import cluster_weights, interval
from metaprobe.eval.metrics.ranked import StratifiedAuroc
from metaprobe.records.types import Run
from metaprobe.training.folds import group_folds
from metaprobe.training.methods import make_tfidf
from research.blocks import keep_figures, packed
from research.systems.figures import ROOT, recorded

MEASURED = ROOT / "docs" / "measured" / "probes_joined.json"
STORES = {
    **{
        f"{model}/{task}": f"{model}-{task}"
        for model, task in product(("qwen-coder-0.5b", "smollm2-135m"), ("arithmetic", "creak", "factual-qa", "places"))
    },
    **{
        f"qwen-coder-1.5b/{task}": f"states/qwen-coder-1.5b/{task}"
        for task in ("arithmetic", "bbq", "creak", "gsm8k", "mmlu", "places", "triviaqa", "true-false")
    },
}
"""Maps a pair of model and task to its store under recorded/."""
ANSWER_WORDS, JOINED = "answer TF-IDF", "free signals joined"
FOLDS, RESAMPLES = 5, 1000

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@click.command()
@click.argument("pairs", nargs=-1, type=click.Choice(list(STORES)))
def main(pairs: tuple[str, ...]) -> None:
    """Measure the named pairs of model and task, by default all."""
    for pair in pairs or STORES:
        keep_figures(MEASURED, figures(recorded(STORES[pair])), pair)
        click.echo(pair, err=True)


def figures(runs: list[Run], seed: int = 0) -> dict[str, Any]:
    """AUROC of both controls among answers of one fold, with intervals of 95 % by a bootstrap over groups."""
    rows = [row for run in runs if (row := row_of(run)) is not None]
    y = np.array([row["right"] for row in rows], dtype=np.int64)
    groups = [row["group"] for row in rows]
    numbers = np.array([row["numbers"] for row in rows])
    texts = [[row[name] for row in rows] for name in ("question", "answer", "cell")]
    scores = {name: np.empty(len(y)) for name in (ANSWER_WORDS, JOINED)}
    fold = np.empty(len(y), dtype=np.int64)
    for place, (rest, test) in enumerate(group_folds(np.arange(len(y)), groups, y, FOLDS, seed)):
        fold[test] = place
        scores[ANSWER_WORDS][test] = by_words(texts[1], y, rest, test)
        inner = list(group_folds(rest, groups, y, FOLDS, seed + 1))
        seen, new = [numbers], [numbers[test]]
        for words in texts:
            own = np.zeros(len(y))
            for less, held in inner:
                own[held] = by_words(words, y, less, held)
            seen.append(own[:, None])
            new.append(by_words(words, y, rest, test)[:, None])
        scale = StandardScaler().fit(np.hstack(seen)[rest])
        model = LogisticRegression(C=0.3, max_iter=500).fit(scale.transform(np.hstack(seen)[rest]), y[rest])
        scores[JOINED][test] = model.decision_function(scale.transform(np.hstack(new)))
    weights, metric = cluster_weights(groups, RESAMPLES, seed), StratifiedAuroc(fold)
    areas = {name: {"auroc": packed(interval(metric, y, score, weights))} for name, score in scores.items()}
    return {"n": len(y), "groups": len(set(groups)), "methods": areas}


def by_words(texts: list[str], y: Ints, rest: Ints, test: Ints) -> Floats:
    """Log-odds of being right for the rows `test`, by the words alone, learned on the rows `rest`."""
    made = make_tfidf()
    X = made.fit_transform([texts[i] for i in rest])
    model = LogisticRegression(C=3.0, max_iter=400, solver="liblinear").fit(X, y[rest])
    return np.asarray(model.decision_function(made.transform([texts[i] for i in test])))


def row_of(run: Run) -> dict[str, Any] | None:
    """Returns the free numbers of a run's answer; None where it is not labelled or has no log-probabilities."""
    answers = [call for call in run.calls if call.stage == "answer"]
    right = run.label("correct", answers[-1].id) if answers else None
    if right is None or answers[-1].logprobs is None or not len(answers[-1].logprobs):
        return None
    logprobs = np.asarray(answers[-1].logprobs, dtype=np.float64)
    said = [run.stated(kind) for kind in ("confidence", "p_true")]
    stated = [0.5 if value is None else value for value in said]
    return {
        "right": int(right),
        "group": group_of(run.item),
        "numbers": [logprobs.mean(), logprobs.min(), logprobs[0], logprobs.sum(), np.log(len(logprobs)), *stated],
        "question": run.item.question,
        "answer": answers[-1].text,
        "cell": f"{run.item.dimension}|{run.item.level}".replace(" ", "_"),
    }


if __name__ == "__main__":
    main()
