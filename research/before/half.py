"""Routing at half the budget: which half of the questions goes to the dearer model, by P(success) and by TF-IDF.

python -m research.before.half DATA TASK [LABELS]    # docs/measured/before_half.json, then the page

Fixed before anything was measured: the two models are those with the lowest and the highest rate of a task, the budget
is half the difference of their prices, and the half with the largest difference of P(success) goes to the dearer model.
Both ways learn from the same labels and choose for the same test questions, over `SPLITS` splits by group. Afterwards
came `ALWAYS`: states that are read on each split, whether or not the ladder takes them. `research.before.states` reads
the prompts.
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.bootstrap import cluster_weights, mean_interval
from metaprobe.routing.success_estimator import RATE, probability
from metaprobe.training.folds import join_groups
from metaprobe.training.recipes.prompt_states import prompt_states, reader_files
from metaprobe.training.success_fit import SuccessData, fit_heads, fit_prior, fit_success, success_data
from metaprobe.training.surface_fit import read_surfaces
from research.before.measure import LABELS, PAGE, TEST_SHARE, text_control, word_columns
from research.before.tasks import outcomes
from research.blocks import DOCS, keep_figures, markdown, packed, read_figures, write

KEPT = DOCS / "measured" / "before_half.json"
SPLITS = 5
BEHIND, AHEAD = 0.5, 2.0
"""Goals in points: never further behind TF-IDF than the first, and ahead by the second on `AHEAD_ON`."""
AHEAD_ON = ("places", "TriviaQA")
PRODUCT, ALWAYS, WORDS = "states", "states, always read", "TF-IDF"
WAYS = (PRODUCT, "surface", ALWAYS, WORDS)
Floats = NDArray[np.float64]


def main(data: Path, task: str, labels: tuple[int, ...] = LABELS) -> None:
    """Measures a task with each number of labels, and writes the page."""
    questions = outcomes(task, data)
    whole = success_data(questions)
    files = reader_files("smollm2-135m", [question.question for question in questions])
    states = {output: np.asarray(values) for output, values in prompt_states(files, whole.questions).items()}
    rate = whole.score.mean(axis=0)
    pair = [int(rate.argmin()), int(rate.argmax())]
    whole = replace(
        whole,
        candidates=tuple(whole.candidates[column] for column in pair),
        score=(whole.score[:, pair] >= 0.5).astype(np.float64),
        propensity=whole.propensity[:, pair],
    )
    groups, _ = join_groups(whole.groups, whole.questions)
    for count in labels:
        keep_figures(KEPT, measured(whole, states, groups, count), f"{task}, {count} labels", sort=False)
        print(task, count, read_figures(KEPT)[f"{task}, {count} labels"], flush=True)
    page()


def measured(
    whole: SuccessData, states: dict[str, NDArray[np.floating]], groups: NDArray[np.str_], labels: int
) -> dict[str, object]:
    """Returns the points by which each way is ahead of the mean of both models and of TF-IDF, with 95 % intervals."""
    n, names, rows = len(whole.questions), np.unique(groups), read_surfaces(whole.questions)
    # Sums over the splits in which a question is tested: how often, and what each way gains over half of each model.
    tested, gain, rungs = np.zeros(n), {way: np.zeros(n) for way in WAYS}, []
    for split in range(SPLITS):
        drawn = np.random.default_rng(split).permutation(names)
        held = drawn[: round(TEST_SHARE * len(names))]
        test = np.flatnonzero(np.isin(groups, held))
        place = {name: at for at, name in enumerate(drawn.tolist())}
        others = np.flatnonzero(~np.isin(groups, held))
        train = np.sort(sorted(others.tolist(), key=lambda row: place[groups[row]])[:labels])
        data, unseen = whole.take(train), whole.take(test)
        learned = {output: values[train] for output, values in states.items()}
        prior, base = fit_prior(data, rows[train], RATE, by_dimension=False, seed=split)
        heads = fit_heads(learned, data, base, seed=split)
        read = heads.log_odds(states[heads.choice.output][test], prior.log_odds(unseen, rows[test]))
        found = {WORDS: probability(control(whole, train, test, split)), ALWAYS: probability(read)}
        for way, own in ((PRODUCT, learned), ("surface", None)):
            fitted = fit_success(data, own, seed=split)
            logit = fitted.prior.log_odds(unseen, rows[test])
            if fitted.heads is not None:
                logit = fitted.heads.log_odds(states[fitted.heads.choice.output][test], logit)
            found[way] = probability(logit * fitted.calibration[:, 0] + fitted.calibration[:, 1])
            rungs.append(f"{way}: {fitted.rung}")
        tested[test] += 1
        score = whole.score[test]
        for way, p in found.items():
            dear = larger_half(p[:, 1] - p[:, 0], split)
            gain[way][test] += np.where(dear, score[:, 1], score[:, 0]) - score.mean(axis=1)
    seen = np.flatnonzero(tested)
    weights = cluster_weights(groups[seen].tolist())

    def points(values: Floats) -> object:
        return packed(mean_interval(100 * values[seen] / tested[seen], weights, tested[seen]), 2)

    return {
        "models": list(whole.candidates),
        "questions": len(seen),
        "steps": {rung: rungs.count(rung) for rung in sorted(set(rungs))},
        "over half of each": {way: points(values) for way, values in gain.items()},
        "over TF-IDF": {way: points(gain[way] - gain[WORDS]) for way in WAYS if way != WORDS},
    }


def control(whole: SuccessData, train: NDArray[np.int64], test: NDArray[np.int64], split: int) -> Floats:
    """Returns log-odds (t, 2) of logistic regression on TF-IDF, which chooses its strength on inner folds."""
    return text_control(word_columns(whole, train), whole, train, test, np.zeros_like(whole.score), split)


def larger_half(values: Floats, seed: int) -> NDArray[np.bool_]:
    """Returns which half of the values is the larger; equal values are decided by chance."""
    chance = np.random.default_rng(seed).random(len(values))
    order = np.lexsort((chance, -values))
    chosen = np.zeros(len(values), dtype=bool)
    chosen[order[: len(values) // 2]] = True
    return chosen


HEAD = ("task", "labels", *(f"{way} over TF-IDF" for way in WAYS if way != WORDS), "splits with states")
"""Columns of the table on the page of further tables."""


def page() -> None:
    """Writes the block `half` of the page, and a table on its page of further tables."""
    kept = read_figures(KEPT)
    table = []
    for name, found in kept.items():
        row = [f"{middle:+.1f} [{low:+.1f}, {high:+.1f}]" for middle, low, high in found["over TF-IDF"].values()]
        task, labels = name.removesuffix(" labels").split(", ")
        table.append([task, labels, *row, f"{found['steps'].get('states: prompt states', 0)} of {SPLITS}"])
    write(PAGE, "half-rows", markdown(HEAD, table))
    product, always = ([found["over TF-IDF"][way][0] for found in kept.values()] for way in (PRODUCT, ALWAYS))
    wanted = [middle for name, middle in zip(kept, product, strict=True) if name.startswith(AHEAD_ON)]
    told = (
        f"Where half of the questions go to the better of two models, P(success) is {min(product):+.1f} to "
        f"{max(product):+.1f} points of accuracy from TF-IDF in {len(kept)} [cases](tables/before.md#half-the-budget): "
        f"over {BEHIND} behind in {sum(one < -BEHIND for one in product)}, ahead by {AHEAD:.0f} in "
        f"{sum(one >= AHEAD for one in wanted)} of {len(wanted)} on places and TriviaQA. States that are always read: "
        f"{min(always):+.1f} to {max(always):+.1f}."
    )
    write(PAGE, "half", [told])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], tuple(int(one) for one in sys.argv[3:]) or LABELS)
