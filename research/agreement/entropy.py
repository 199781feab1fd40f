"""Measures whether semantic entropy is a better target than agreement for a score before the answer.

    python -m research.agreement.entropy

The embedded reader's states of the questions are taught three ways on the same questions: by the share of pairs of
samples that agree, by the entropy of the classes of equal samples, and by labels. Each way orders the answers to
questions that are left out, one score a question. Two samples hold no more in their entropy than in their agreement.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.ranked import auroc
from metaprobe.routing.panel.model_rows import UNREADABLE_CLASS
from metaprobe.training.agreement import _classes, _reading_of, sampled_questions
from metaprobe.training.recipes.prompt_states import prompt_states, reader_files
from research.agreement.ways import Samples, read_samples
from research.blocks import ROOT
from research.panel.measure import SAMPLED

Floats = NDArray[np.float64]
COUNTS = (4, 8)
"""Samples of a question that teach."""
QUESTIONS = (100, 200)
"""Questions that teach."""
DRAWS, COMPONENTS, PENALTIES = 20, 32, (1.0, 10.0, 100.0, 1000.0)


def targets(classes: Sequence[int]) -> tuple[float, float]:
    """Returns the share of pairs that agree, and the negative entropy of the classes in nats.

    Samples that cannot be read are each a class of their own.
    """
    alone = [place for place in classes if place == UNREADABLE_CLASS]
    counts = np.unique([place for place in classes if place != UNREADABLE_CLASS], return_counts=True)[1].tolist()
    shares = np.array([*counts, *([1] * len(alone))], dtype=float)
    total = shares.sum()
    pairs = float((shares * (shares - 1)).sum() / (total * (total - 1)))
    return pairs, float((shares / total * np.log(shares / total)).sum())


def ridge(train: Floats, y: Floats, test: Floats) -> Floats:
    """Returns ridge scores of the test rows; the penalty of least error on the rows left out, one at a time."""
    mean, spread = train.mean(0), train.std(0) + 1e-9
    U, S, Vt = np.linalg.svd((train - mean) / spread, full_matrices=False)
    U, S, Vt = U[:, :COMPONENTS], S[:COMPONENTS], Vt[:COMPONENTS]
    centred = y - y.mean()
    best, weights = np.inf, np.zeros(train.shape[1])
    for penalty in PENALTIES:
        shrunk = S**2 / (S**2 + penalty)
        hat = (U**2 * shrunk).sum(1) + 1 / len(y)
        fitted = U @ (shrunk * (U.T @ centred))
        error = float((((centred - fitted) / (1 - hat)) ** 2).mean())
        if error < best:
            best, weights = error, Vt.T @ (S / (S**2 + penalty) * (U.T @ centred))
    return np.asarray((test - mean) / spread @ weights, dtype=np.float64)


def measured(samples: Samples, states: Floats, count: int, learnt: int) -> dict[str, list[float]]:
    """Returns the AUROC of each way, draw by draw."""
    questions, _, _ = sampled_questions(samples.runs, stage="answer")
    place_of = {run.item.id: place for place, run in enumerate(samples.runs)}
    read_by, _ = _reading_of(questions, None)
    places, agreed, certain = [], [], []
    for question in questions:
        classes = _classes(question, question.item.check or read_by)[:count]
        if len(classes) == count:
            pairs, entropy = targets(classes)
            places.append(place_of[question.item.id])
            agreed.append(pairs)
            certain.append(entropy)
    right = np.array([samples.y[samples.question == place][:count].mean() for place in places])
    groups = np.array([samples.groups[samples.question == place][0] for place in places])
    X, known = states[places], {"agreement": agreed, "entropy": certain, "labels": right.tolist()}
    found: dict[str, list[float]] = {way: [] for way in known}
    for seed in range(DRAWS):
        generator = np.random.default_rng(seed)
        order = generator.permutation(np.unique(groups))
        rank = {group: at for at, group in enumerate(order)}
        ordered = np.argsort([rank[group] for group in groups], kind="stable")
        train = ordered[:learnt]
        test = np.array([row for row in ordered[learnt:] if groups[row] not in set(groups[train])])
        y = np.concatenate([samples.y[samples.question == places[row]] for row in test])
        repeat = [int((samples.question == places[row]).sum()) for row in test]
        for way, target in known.items():
            scores = ridge(X[train], np.array(target)[train], X[test])
            found[way].append(auroc(y, np.repeat(scores, repeat)))
    return found


def main() -> None:
    """Prints a line a store."""
    for name, store in SAMPLED.items():
        samples = read_samples(ROOT / "recorded" / store)
        texts = [run.item.question for run in samples.runs]
        files = reader_files("smollm2-135m", texts)
        states = prompt_states(files, texts)
        array = np.asarray(states[f"mean{files.layers[1]}"], dtype=np.float64)
        for count in COUNTS:
            for learnt in QUESTIONS:
                found = measured(samples, array, count, learnt)
                means = {way: round(float(np.mean(values)), 3) for way, values in found.items()}
                difference = np.subtract(found["entropy"], found["agreement"])
                print(name, count, learnt, means, f"{difference.mean():+.4f} ({(difference > 0).sum()} of {DRAWS})", flush=True)


if __name__ == "__main__":
    main()
