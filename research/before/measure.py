"""Whether prompt states of the embedded model tell which other model will be right, before it is asked.

python -m research.before.states DATA                 # the prompts, read once
python -m research.before.minilm DATA FOLDER          # the control's embeddings
python -m research.before.measure DATA [TASK]         # docs/measured/before.json and the page; with TASK out/before
python -m research.before.measure page                # the page alone
"""

import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.bootstrap import MetricValues, cluster_weights, control_comparison, metric_values
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.llms.weights import cache_folder
from metaprobe.records.extras import require
from metaprobe.routing.question_surface import form_counts
from metaprobe.training.folds import join_groups
from metaprobe.training.recipes.prompt_states import _cached, prompt_states, reader_files
from metaprobe.training.success_fit import (
    INNER_FOLDS,
    SuccessData,
    fit_heads,
    fit_labelled_states,
    fit_logistic,
    fold_numbers,
    log_loss,
    rate_tables,
    success_data,
)
from research.before.tasks import TASKS, outcomes
from research.blocks import DOCS, ROOT, ahead, behind, markdown, read_figures, write, write_figures

EMBEDDINGS = ROOT / "out" / "before"
"""Folder of the embeddings that `research.before.minilm` keeps, and of the figures of each task."""
PAGE, KEPT = DOCS / "research" / "before.md", DOCS / "measured" / "before.json"
STEP, RECIPE = "question surface", "Switchyard recipe"
STEP_FIGURES, RECIPE_FIGURES = DOCS / "measured" / "before_surface.json", DOCS / "measured" / "before_switchyard.json"
"""Figures of `research.before.surface` and `research.before.switchyard`: further columns of the page."""
SPEED = DOCS / "measured" / "reader_speed.json"
"""Figures of `benchmarks.reader_speed`."""
LABELS = (200, 1000)
TEST_SHARE = 1 / 3
"""Share of the groups that are only tested on, the same for every draw."""
DRAWS = 1
"""Draws of the labelled questions."""
RESAMPLES = 400
STRENGTHS = (0.3, 1.0, 3.0, 10.0, 30.0)
"""1 / penalty of TF-IDF, of which inner folds choose."""
OWN, TFIDF, TABLE, BOTH, MINILM = "states", "TF-IDF", "dimension table", "TF-IDF and dimension", "MiniLM"
SURFACE = "surface"
"""Control of all that needs no language model: words, characters, the form of the question and its dimension."""
METHODS = (OWN, TFIDF, TABLE, BOTH, SURFACE, MINILM)
SHOWN = (OWN, TFIDF, SURFACE)
"""Methods in the table of the page itself; its page of further tables has all."""
FORM_SCALE = 0.3
"""Standard deviation of the columns of form beside TF-IDF vectors of length 1."""
LENGTH, SHUFFLED = "question length", "shuffled labels"
FEWEST = 600
"""Questions of a task that must have been read for it to be measured."""
AIM_MS = 30.0
"""Milliseconds that a prompt of 64 tokens may take."""
FOREIGN = 100
"""Questions of another task that are planted."""
Floats = NDArray[np.float64]


def main(data: Path, only: str = "") -> None:
    """Measures the tasks whose prompts were read, or one of them alone; with all of them it writes the page."""
    files = reader_files("smollm2-135m", [])
    known = _cached(cache_folder() / "prompt-states" / files.digest[:24])
    states: dict[str, Mapping[str, NDArray[Any]]] = {}
    sets: dict[str, SuccessData] = {}
    for task in TASKS:
        questions = outcomes(task, data)
        digests = [hashlib.sha256(one.question.encode("utf-8", "replace")).hexdigest() for one in questions]
        count = next((at for at, name in enumerate(digests) if name not in known), len(questions))
        if count >= FEWEST:
            sets[task] = success_data(questions[:count])
            states[task] = prompt_states(files, sets[task].questions)
    for task, whole in sets.items():
        kept = EMBEDDINGS / f"measured-{task.replace(' ', '-')}.json"
        if only in ("", task) and read_figures(kept).get("questions") != len(whole.questions):
            path = EMBEDDINGS / f"minilm-{task.replace(' ', '-')}.npy"
            embedded = np.load(path)[: len(whole.questions)] if path.exists() else None
            others = {name: states[name] for name in sets if name != task}
            write_figures(kept, measured(whole, states[task], embedded, others))
            print(task, flush=True)
    if not only:
        merge()


def merge() -> None:
    """Keeps the figures of the measured tasks beside those of tasks that were kept before, and writes the page."""
    before = read_figures(KEPT).get("tasks", {})
    made = {task: read_figures(EMBEDDINGS / f"measured-{task.replace(' ', '-')}.json") for task in TASKS}
    # A run without the other tasks' states gives no shares of foreign questions: those of before stay.
    kept = {task: {**before.get(task, {}), **made[task]} for task in TASKS}
    write_figures(KEPT, {"tasks": {task: found for task, found in kept.items() if found}})
    page()


def measured(
    whole: SuccessData,
    states: Mapping[str, NDArray[Any]],
    embedded: NDArray[np.float32] | None,
    others: Mapping[str, Mapping[str, NDArray[Any]]],
) -> dict[str, Any]:
    """Returns the figures of one task."""
    groups, note, test, rest = split_groups(whole)
    weights = cluster_weights(groups[test].tolist(), RESAMPLES)
    found: dict[str, Any] = {"questions": len(whole.questions), "test": len(test), "joined": note, "labels": {}}
    for labels in LABELS:
        if len(groups) - len(test) < 0.9 * labels:
            continue
        values: dict[str, dict[str, list[MetricValues]]] = {}
        foreign: list[dict[str, float]] = []
        for draw in range(DRAWS):
            train = drawn_labels(groups, rest, labels, draw)
            scores, told = scores_of(
                whole, train, test, states, embedded, others if labels == max(LABELS) else {}, draw
            )
            foreign += [told] if told else []
            for at, target in enumerate(whole.candidates):
                y = (whole.score[test, at] >= 0.5).astype(np.int64)
                for name, score in scores.items():
                    made = metric_values(auroc, y, score[:, at], weights)
                    values.setdefault(target, {}).setdefault(name, []).append(made)
        found["labels"][str(labels)] = {target: compared(many, weights) for target, many in values.items()}
        if foreign:
            found["foreign"] = {name: float(np.mean([one[name] for one in foreign])) for name in foreign[0]}
    return found


def split_groups(whole: SuccessData) -> tuple[NDArray[Any], str, NDArray[Any], list[str]]:
    """Returns the joined groups (n,), a note on what was joined, the test rows, and the names of the other groups."""
    groups, note = join_groups(whole.groups, whole.questions)
    names = np.unique(groups)
    drawn = names[np.random.default_rng(0).permutation(len(names))]
    tested = round(TEST_SHARE * len(names))
    return groups, note, np.flatnonzero(np.isin(groups, drawn[:tested])), drawn[tested:].tolist()


def drawn_labels(groups: NDArray[Any], others: Sequence[str], labels: int, draw: int) -> NDArray[Any]:
    """Returns the labelled rows of a draw, rising: those of the first groups of `others` in a drawn order."""
    order = np.random.default_rng(100 + draw).permutation(np.array(others))
    place = {name: at for at, name in enumerate(order.tolist())}
    rows = [row for row, group in enumerate(groups.tolist()) if group in place]
    return np.sort(sorted(rows, key=lambda row: place[groups[row]])[:labels])


def compared(values: Mapping[str, list[MetricValues]], weights: NDArray[Any]) -> dict[str, Any]:
    """Returns AUROC of each method, mean over the draws, and the states against the controls with Holm."""
    mean = {
        name: MetricValues(
            float(np.mean([one.estimate for one in many])), np.mean([one.resamples for one in many], axis=0)
        )
        for name, many in values.items()
    }
    controls = {name: mean[name] for name in METHODS[1:] if name in mean}
    result = control_comparison(mean[OWN], controls, weights)
    against = {
        one.name: [round(float(v), 4) for v in (one.difference.estimate, one.difference.low, one.difference.high)]
        + [round(float(one.p_holm), 4)]
        for one in result.controls
    }
    return {"auroc": {name: round(one.estimate, 4) for name, one in mean.items()}, "against": against}


def scores_of(
    whole: SuccessData,
    train: NDArray[Any],
    test: NDArray[Any],
    states: Mapping[str, NDArray[Any]],
    embedded: NDArray[np.float32] | None,
    others: Mapping[str, Mapping[str, NDArray[Any]]],
    draw: int,
) -> tuple[dict[str, Floats], dict[str, float]]:
    """Returns scores (t, A) of every method on the test questions, and the share that counts as unseen by set."""
    data = whole.take(train)
    table = rate_tables(data, by_dimension=len(whole.dimensions) > 1)
    prior, there = table[:, data.dimension].T, table[:, whole.dimension[test]].T
    own = {name: values[train] for name, values in states.items()}
    heads = fit_heads(own, data, prior, seed=draw)
    chosen = states[heads.choice.output]
    scores = {OWN: heads.log_odds(chosen[test], there)}
    if len(whole.dimensions) > 1:
        scores[TABLE] = there
    words, nothing, offset = word_columns(whole, train), np.zeros_like(whole.score), table[:, whole.dimension].T
    scores[TFIDF] = text_control(words, whole, train, test, nothing, draw)
    if len(whole.dimensions) > 1:
        scores[BOTH] = text_control(words, whole, train, test, offset, draw)
    scores[SURFACE] = text_control(surface_columns(whole, train), whole, train, test, offset, draw)
    if embedded is not None:
        of_encoder = fit_heads({MINILM: embedded[train]}, data, prior, seed=draw)
        scores[MINILM] = of_encoder.log_odds(embedded[test], there)
    length = np.log1p([len(question) for question in whole.questions])[:, None]
    W = fit_logistic(length[train] - length[train].mean(), np.zeros_like(prior), data.score, 1.0)
    scores[LENGTH] = length[test] @ W[:, :-1].T
    mixed = data.score[np.random.default_rng(draw).permutation(len(train))]
    Z = heads.components.project(chosen)[:, : heads.choice.components]
    W = fit_logistic(Z[train], np.zeros_like(prior), mixed, heads.choice.penalty)
    scores[SHUFFLED] = Z[test] @ W[:, :-1].T
    if not others:
        return scores, {}
    labelled_states = fit_labelled_states(heads.components, chosen[train], data)
    planted = {"new questions": chosen[test][:FOREIGN]}
    planted |= {name: many[heads.choice.output][:FOREIGN] for name, many in others.items()}
    told = {}
    for name, many in planted.items():
        nearest = [np.sort(labelled_states.distances(one))[: labelled_states.neighbours].mean() for one in many]
        told[name] = float(np.mean(np.array(nearest) > labelled_states.limit))
    return scores, told


def word_columns(whole: SuccessData, train: NDArray[Any], **units: Any) -> Any:
    """Returns TF-IDF (n, D) of words and pairs of words, counted on the labelled questions; `units`: other units."""
    text = require("sklearn.feature_extraction.text", "fit")
    reader = text.TfidfVectorizer(**{"min_df": 2, "sublinear_tf": True, "ngram_range": (1, 2)} | units)
    return reader.fit([whole.questions[row] for row in train.tolist()]).transform(whole.questions)


def surface_columns(whole: SuccessData, train: NDArray[Any]) -> Any:
    """Returns (n, D): TF-IDF of words and of 2 to 5 characters, and seven counts of the form of the question."""
    sparse = require("scipy.sparse", "fit")
    form = np.array([form_counts(question) for question in whole.questions])
    form = FORM_SCALE * (form - form[train].mean(axis=0)) / (form[train].std(axis=0) + 1e-9)
    characters = word_columns(whole, train, analyzer="char_wb", ngram_range=(2, 5))
    return sparse.hstack([characters, word_columns(whole, train), sparse.csr_matrix(form)]).tocsr()


def text_control(
    words: Any, whole: SuccessData, train: NDArray[Any], test: NDArray[Any], offset: Floats, draw: int
) -> Floats:
    """Returns log-odds (t, A) of logistic regression on columns of texts, its strength chosen on inner folds by group.

    Args:
        words: the columns, (n, D) as scipy CSR.
        whole: the questions.
        train: the labelled questions.
        test: the test questions, (t,).
        offset: log-odds (n, A) that are added, by a column whose weight is learned.
        draw: number of the draw of labels.
    """
    linear, sparse = require("sklearn.linear_model", "fit"), require("scipy.sparse", "fit")
    fold = fold_numbers([whole.groups[row] for row in train.tolist()], INNER_FOLDS, draw + 1)
    columns = []
    for at in range(whole.score.shape[1]):
        y = (whole.score[train, at] >= 0.5).astype(np.int64)
        X = sparse.hstack([words, offset[:, at : at + 1]]).tocsr() if np.ptp(offset) else words
        losses = []
        for strength in STRENGTHS:
            logit = np.zeros(len(train))
            for number in range(INNER_FOLDS):
                own = fold == number
                if len(set(y[~own].tolist())) == 2:
                    model = linear.LogisticRegression(C=strength, max_iter=300).fit(X[train[~own]], y[~own])
                    logit[own] = model.decision_function(X[train[own]])
            losses.append(float(log_loss(logit, y).mean()))
        best = STRENGTHS[int(np.argmin(losses))]
        model = linear.LogisticRegression(C=best, max_iter=300).fit(X[train], y)
        columns.append(model.decision_function(X[test]))
    return np.column_stack(columns)


# The page.


def standing(row: Mapping[str, Any]) -> str:
    """Returns whether the states are ahead of all controls, behind one, or neither, after Holm's correction."""
    against = row["against"].values()
    if all(low > 0 and p < 0.05 for _, low, _, p in against):
        return "ahead"
    return "behind" if any(high < 0 and p < 0.05 for _, _, high, p in against) else "level"


def page() -> None:
    """Writes the blocks of the page."""
    tasks = read_figures(KEPT)["tasks"]
    rows = [
        (task, labels, target, row)
        for task, found in tasks.items()
        for labels, many in found["labels"].items()
        for target, row in many.items()
    ]
    counts = {labels: [standing(row) for _, n, _, row in rows if n == str(labels)] for labels in LABELS}
    mean = {
        (labels, name): float(
            np.mean([row["auroc"][name] for _, n, _, row in rows if n == str(labels) and name in row["auroc"]])
        )
        for labels in LABELS
        for name in (OWN, TFIDF, SURFACE, MINILM, LENGTH, SHUFFLED)
        if any(n == str(labels) and name in row["auroc"] for _, n, _, row in rows)
    }
    told = {
        labels: f"ahead of all controls on {many.count('ahead')} of {len(many)} pairs of task and model, level on "
        f"{many.count('level')}, behind on {many.count('behind')}"
        for labels, many in counts.items()
    }
    means = "; ".join(
        f"{labels:,} labels: "
        + ", ".join(
            f"{name} {mean[labels, name]:.3f}" for name in (OWN, SURFACE, MINILM, TFIDF) if (labels, name) in mean
        )
        for labels in LABELS
        if counts[labels]
    )
    answer = (
        f"With 200 labels prompt states of the embedded 135M model are {told[200]}, and with 1,000 labels {told[1000]} "
        f"(Holm over the controls). Mean AUROC of right and wrong on new questions, with "
        f"{means}. Shuffled labels reach {mean[200, SHUFFLED]:.3f} and the length of the question "
        f"{mean[200, LENGTH]:.3f}."
    )
    write(PAGE, "answer", [answer])
    table = []
    for task, labels, target, row in rows:
        values = {name: f"{row['auroc'][name]:.3f}" if name in row["auroc"] else "-" for name in METHODS}
        strongest = max(row["against"].items(), key=lambda one: row["auroc"][one[0]])
        low, high = strongest[1][1:3]
        gain = f"{strongest[1][0]:+.3f} [{low:+.3f}, {high:+.3f}]"
        table.append([task, labels, target, *values.values(), f"{gain}, {standing(row)}"])
    head = ("task", "labels", "model", *METHODS, "states over the strongest")
    write(PAGE, "rows-all", markdown(head, table))
    # The mean over the models of a task stands on the page itself.
    files = {STEP: STEP_FIGURES, RECIPE: RECIPE_FIGURES}
    further = {name: read_figures(path).get("tasks", {}) for name, path in files.items()}
    means_of = []
    for task, found in tasks.items():
        for labels, many in found["labels"].items():
            columns = [[row["auroc"].get(name) for row in many.values()] for name in SHOWN]
            for name, others in further.items():
                rows_there = others.get(task, {}).get("labels", {}).get(labels, {})
                columns.append([rows_there[target]["auroc"][name] if rows_there else None for target in many])
            stands = [standing(row) for row in many.values()]
            counted = ", ".join(str(stands.count(word)) for word in ("ahead", "level", "behind"))
            values = ["-" if None in column else f"{np.mean(column):.3f}" for column in columns]
            means_of.append([task, labels, *values, counted])
    write(PAGE, "rows", markdown(("task", "labels", *SHOWN, *files, "ahead, level, behind"), means_of))
    write(PAGE, "further", _further(further))
    seen, foreign = [], []
    for task, found in tasks.items():
        if "foreign" in found:
            seen.append(found["foreign"]["new questions"])
            foreign += [(share, other, task) for other, share in found["foreign"].items() if other != "new questions"]
    by_form = read_figures(STEP_FIGURES).get("forms", {})
    if foreign:
        least, other, task = min(foreign)
        sure = sum(share >= 0.95 for share, _, _ in foreign)
        told_apart = (
            f"Trained on one task, at least 95% of the questions of another task count as unseen in {sure} of "
            f"{len(foreign)} pairs of tasks (least {100 * least:.0f}%, {other} after {task}), and of new questions of "
            f"the same task {100 * np.mean(seen):.0f}%."
        )
        write(PAGE, "foreign", [told_apart, *_by_form(by_form)])
    speed = read_figures(SPEED)
    first, *others = (
        f"{row['processor_ms']:.0f} ms{' of the processor' if at == 0 else ''} at layer {layer}"
        for at, (layer, row) in enumerate(speed["layers"].items())
    )
    least = min(row["processor_ms"] for row in speed["layers"].values())
    walls = [row["wall_ms"] for row in speed["layers"].values()]
    reached = "reached" if least <= AIM_MS else "not reached"
    cost = (
        f"A prompt of 64 tokens, {speed['read_tokens']} with the chat template, takes {first}, {', '.join(others)}, "
        f"with int8 products on one thread. The wall clock on busy cores showed {min(walls):.0f} to "
        f"{max(walls):.0f} ms. The aim of {AIM_MS:.0f} ms was {reached}."
    )
    write(PAGE, "cost", [cost])


def _further(further: Mapping[str, Any]) -> list[str]:
    """Returns a sentence on the step that needs no language model, and one on the recipe."""
    steps, recipes = [], []
    for labels in LABELS:
        rows = {
            name: [row for task in tasks.values() for row in task["labels"].get(str(labels), {}).values()]
            for name, tasks in further.items()
        }
        if rows[STEP]:
            means = (
                " and ".join(f"{np.mean([row[key][name] for row in rows[STEP]]):.3f}" for key in ("auroc", "log_loss"))
                for name in (STEP, SURFACE, TFIDF)
            )
            own, of_surface, of_words = means
            steps.append(f"{own} with {labels:,} labels ({SURFACE} {of_surface}, {TFIDF} {of_words})")
        if gains := [row["gain"] for row in rows[RECIPE]]:
            recipes.append(
                f"{np.mean([gain[0] for gain in gains]):+.3f} with {labels:,}, ahead on {ahead(gains)} and behind on "
                f"{behind(gains)} of {len(gains)} pairs"
            )
    sentences = [f"AUROC and log loss of `{STEP}`: {'; '.join(steps)}."] if steps else []
    sentences += [f"States less {RECIPE}: {'; '.join(recipes)}, by their own intervals."] if recipes else []
    return [" ".join(sentences)]


def _by_form(forms: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Returns a sentence on requests that are told apart by their form alone."""
    shares = [share for task, others in forms.items() for other, share in others.items() if other != task]
    if not shares:
        return []
    seen = float(np.mean([others[task] for task, others in forms.items()]))
    return [
        "",
        f"By the form alone at least 95% count as unseen in {sum(share >= 0.95 for share in shares)} of {len(shares)} "
        f"pairs, and of new questions of the same task {100 * seen:.0f}%.",
    ]


if __name__ == "__main__":
    if sys.argv[1:] == ["page"]:
        page()
    else:
        main(Path(sys.argv[1]), *sys.argv[2:])
