"""Prompt states against the recipe of NVIDIA's Switchyard 0.3, on the labels and test questions of the page.

python -m research.before.layers DATA        # the prompts, read once
python -m research.before.switchyard DATA    # docs/measured/before_switchyard.json, then the page

The recipe, after `model_router_toolkit.prefill` of NVIDIA's llm-router, on which Switchyard's prefill router builds:
the mean over the tokens of every layer, standardised and brought to 200 principal components; ten nets of two hidden
layers with all models as outputs, each stopped by 15 % of the rows; the mean of the five that stopped lowest.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from metaprobe.eval.metrics.bootstrap import MetricValues, cluster_weights, control_comparison, metric_values
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.records.extras import require
from metaprobe.training.success_fit import SuccessData, fit_heads, rate_tables, success_data
from research.before.layers import read_layers
from research.before.measure import LABELS, OWN, RECIPE, RECIPE_FIGURES, RESAMPLES, drawn_labels, page, split_groups
from research.before.tasks import TASKS, outcomes
from research.blocks import keep_figures, packed, read_figures

KEPT = RECIPE_FIGURES
RECIPE_COMPONENTS, HIDDEN, DROPPED = 200, (256, 128), (0.3, 0.2)
RATE, DECAY, BATCH, EPOCHS, PATIENCE = 1e-3, 1e-4, 512, 150, 15
LEARNED_SHARE = 0.85
"""Share of the rows that a net learns from; the others decide when it stops."""
LEAST_GAIN = 1e-4
"""Fall of the loss on the other rows that counts as progress."""
SEEDS, KEPT_NETS = 10, 5
Floats = NDArray[np.float64]


def main(data: Path) -> None:
    """Measures every task whose prompts were all read, and writes the page."""
    tasks = read_figures(KEPT).get("tasks", {})
    for task in TASKS:
        states, whole = read_layers(task), success_data(outcomes(task, data))
        # Questions that are not all read would be split in another way than on the page.
        if task in tasks or not states or len(states["all"]) < len(whole.questions):
            continue
        keep_figures(KEPT, measured(whole, states), "tasks", task, sort=False)
        print(task, flush=True)
    page()


def measured(whole: SuccessData, states: dict[str, NDArray[np.float16]]) -> dict[str, Any]:
    """Returns AUROC of states and recipe, and their paired difference, of each model with each number of labels."""
    groups, _, test, rest = split_groups(whole)
    weights = cluster_weights(groups[test].tolist(), RESAMPLES)
    layers = states.pop("all")
    figures: dict[str, Any] = {"questions": len(whole.questions), "labels": {}}
    for labels in LABELS:
        if len(groups) - len(test) < 0.9 * labels:
            continue
        train = drawn_labels(groups, rest, labels, 0)
        part = whole.take(train)
        table = rate_tables(part, by_dimension=len(whole.dimensions) > 1)
        prior, prior_there = table[:, part.dimension].T, table[:, whole.dimension[test]].T
        heads = fit_heads({name: values[train] for name, values in states.items()}, part, prior, seed=0)
        scores = {
            OWN: heads.log_odds(states[heads.choice.output][test], prior_there),
            RECIPE: recipe_scores(layers, (part.score >= 0.5).astype(np.float32), train, test),
        }
        rows = {}
        for column, target in enumerate(whole.candidates):
            y = (whole.score[test, column] >= 0.5).astype(np.int64)
            values: dict[str, MetricValues] = {
                name: metric_values(auroc, y, score[:, column], weights) for name, score in scores.items()
            }
            (compared,) = control_comparison(values[OWN], {RECIPE: values[RECIPE]}, weights).controls
            rows[target] = {
                "auroc": {name: round(value.estimate, 4) for name, value in values.items()},
                "gain": packed(compared.difference),
            }
        figures["labels"][str(labels)] = rows
    return figures


def recipe_scores(
    layers: NDArray[np.float16], y: NDArray[np.float32], train: NDArray[Any], test: NDArray[Any]
) -> Floats:
    """Returns P(right) (t, A) of the recipe on the test questions.

    Args:
        layers: mean over the tokens of the embeddings and of every layer, (n, L + 1, D). As in the recipe, the last
            layer is left out.
        y: which answers of the labelled questions are right, (m, A).
        train: the labelled questions, (m,).
        test: the test questions, (t,).
    """
    decomposition, preprocessing = require("sklearn.decomposition", "fit"), require("sklearn.preprocessing", "fit")
    columns = layers[:, :-1].reshape(len(layers), -1).astype(np.float32)
    scaler = preprocessing.StandardScaler().fit(columns[train])
    most = min(RECIPE_COMPONENTS, len(train))
    pca = decomposition.PCA(most, svd_solver="randomized", iterated_power=5, random_state=42)
    seen, new = (torch.from_numpy(part) for part in (
        pca.fit_transform(scaler.transform(columns[train])).astype(np.float32),
        pca.transform(scaler.transform(columns[test])).astype(np.float32),
    ))  # fmt: skip
    nets = sorted((trained_net(seen, torch.from_numpy(y), seed) for seed in range(SEEDS)), key=lambda net: net[0])
    with torch.inference_mode():
        return np.mean([torch.sigmoid(net(new)).numpy() for _, net in nets[:KEPT_NETS]], axis=0).astype(np.float64)


def trained_net(X: torch.Tensor, y: torch.Tensor, seed: int) -> tuple[float, torch.nn.Module]:
    """Returns a net with its lowest loss on the rows that it did not learn from."""
    torch.manual_seed(seed)
    layers: list[torch.nn.Module] = []
    for wide, narrow, dropped in zip((X.shape[1], *HIDDEN), HIDDEN, DROPPED, strict=False):
        layers += [torch.nn.Linear(wide, narrow), torch.nn.ReLU(), torch.nn.Dropout(dropped)]
    net = torch.nn.Sequential(*layers, torch.nn.Linear(HIDDEN[-1], y.shape[1]))
    optimiser = torch.optim.Adam(net.parameters(), lr=RATE, weight_decay=DECAY)
    loss_of = torch.nn.BCEWithLogitsLoss()
    order = torch.randperm(len(X))
    learned, other = order[: int(len(X) * LEARNED_SHARE)], order[int(len(X) * LEARNED_SHARE) :]
    best, best_state, waited = float("inf"), net.state_dict(), 0
    for _ in range(EPOCHS):
        net.train()
        for batch in learned[torch.randperm(len(learned))].split(BATCH):
            optimiser.zero_grad()
            loss_of(net(X[batch]), y[batch]).backward()
            optimiser.step()
        net.eval()
        with torch.inference_mode():
            loss = float(loss_of(net(X[other]), y[other]))
        if loss < best - LEAST_GAIN:
            best, waited = loss, 0
            best_state = {name: value.clone() for name, value in net.state_dict().items()}
        else:
            waited += 1
        if waited >= PATIENCE:
            break
    net.load_state_dict(best_state)
    return best, net.eval()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
