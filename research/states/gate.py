"""Measures whether a streaming gate gains from hidden states: at each look, beside every control, on answers left out.

    python -m research.states.solutions MODEL STORE OUT       # reads the states along recorded solutions
    python -m research.states.gate measure NAME STORE OUT     # one set into docs/measured/gate_states.json
    python -m research.states.gate measure --ended NAME STORE OUT    # only of answers that ended by themselves
    python -m research.states.gate measure --cut NAME STORE OUT      # whether the answer ends by itself, as the label
    python -m research.states.gate page                       # writes docs/research/gate.md

Outer folds are by question. A probe's layer, kind of state and penalty are chosen in inner folds of the learning rows,
and so are the weights of what is joined. Controls are fitted on the same rows.
"""

import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from metaprobe import RunStore
from metaprobe.eval.metrics.bootstrap import (
    ControlComparison,
    cluster_weights,
    control_comparison,
    metric_values,
    resampled_interval,
)
from metaprobe.eval.metrics.ranked import StratifiedAuroc
from metaprobe.probes.features import COUNTS
from metaprobe.records.activations import Activations
from metaprobe.records.reading import STOP
from metaprobe.training.agreement import agreement_pairs
from metaprobe.training.calibrators import fit_platt
from metaprobe.training.folds import outer_folds
from metaprobe.training.gate_inputs import fit_question_score, forms_of
from metaprobe.training.ladder import LadderColumns, LadderRows, fit_ladder, unseen_scores
from metaprobe.training.linear_probe import fit_linear_probe, score_held_out, unseen_probe_scores
from metaprobe.training.methods import pays, weigh_parts, words_in
from metaprobe.training.stored_states import InMemory
from research.blocks import DOCS, MEASURED, ahead, behind, keep_figures, markdown, packed, read_figures, write

PAGE, FIGURES = DOCS / "research" / "gate.md", MEASURED / "gate_states.json"
MEAN = "mean log-probability"
SHOWN = (MEAN, "form of the question", "form, terms", "states", "states, form, terms", "gate", "states, by agreement")
FOLDS, REFERENCE_FOLDS, RESAMPLES, SEED = 5, 3, 1000, 0
CUT_SET = "1.5B coder, samples, whether cut"
"""Name of the figures of which the label is whether an answer ends by itself."""
CUT_LOOK = 50
"""Tokens read at the look that the page names of it."""
FEWEST = 60
"""Right answers, and wrong ones, that a look needs; with fewer, five outer folds hold too few to say anything."""
KINDS = ("newest", "mean of the newest 20")
CONTROLS = (
    "mean log-probability",
    "terms",
    "length of the question",
    "form of the question",
    "form, terms",
    "words of the question",
)
OURS = ("states", "states, form, terms", "gate")
AGREEING = "states, by agreement"
AGREEMENT_CELL, AGREEMENT_PENALTY = (18, KINDS[1]), 1.0
"""Layer, kind and penalty of the probe that agreement teaches: fixed beforehand, for there is no label to choose by."""
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Solutions:
    """n recorded answers with their states."""

    y: NDArray[np.int64]
    groups: NDArray[np.str_]
    questions: NDArray[np.str_]
    logprobs: list[NDArray[np.float32]]
    ended: NDArray[np.bool_]
    """(n,): whether the answer ended by itself."""
    agreement: Floats
    """(n,): share of the model's other samples that say the same; NaN where there is none."""
    looks: tuple[int, ...]
    layers: tuple[int, ...]
    states: NDArray[np.float16]
    """(n, looks, layers, 2, width); NaN beyond the answer's end."""

    @property
    def tokens(self) -> NDArray[np.int64]:
        """Number of tokens of each answer."""
        return np.array([len(series) for series in self.logprobs])


def load(store: Path, folder: Path, *, ended: bool = False) -> Solutions:
    """Returns the answers of the store whose states were read into the folder.

    With `ended`, only those that no token limit cut: one that is cut is mostly wrong, and states tell which will be.
    """
    parts = [np.load(path) for path in sorted(folder.glob("*.npz"))]
    read = {call: (i, j) for i, part in enumerate(parts) for j, call in enumerate(part["call"].tolist())}
    runs = list(RunStore(store).runs())
    agreed: dict[str, list[int]] = {}
    try:
        pairs = agreement_pairs(runs, stage="answer")
        for call_id, same in zip(pairs.call_ids, pairs.same.tolist(), strict=True):
            agreed.setdefault(call_id, []).append(same)
    except Exception as error:  # one sample a question: there is no agreement
        print(f"no agreement: {error}")
    rows: list[tuple[Any, ...]] = []
    for run in runs:
        for call in run.calls:
            label = run.label("correct", call.id)
            if ended and call.finish_reason != STOP:
                continue
            if call.id in read and label is not None and call.logprobs is not None:
                i, j = read[call.id]
                share = float(np.mean(agreed[call.id])) if call.id in agreed else np.nan
                end = call.finish_reason == STOP
                rows.append(
                    (int(label), run.item.id, run.item.question, call.logprobs, end, share, parts[i]["states"][j])
                )
    y, groups, questions, logprobs, ends, agreement, states = zip(*rows, strict=True)
    return Solutions(
        np.array(y),
        np.array(groups),
        np.array(questions),
        list(logprobs),
        np.array(ends),
        np.array(agreement),
        tuple(parts[0]["looks"].tolist()),
        tuple(parts[0]["layers"].tolist()),
        np.stack(states),
    )


def stream_columns(logprobs: list[NDArray[np.float32]], look: int) -> tuple[NDArray[np.float32], LadderColumns]:
    """Returns what the ladder reads of the first `look` log-probabilities: their mean and lowest, and earlier means."""
    earlier = [count for count in COUNTS if count < look]
    X = np.array([[x[:look].mean(), x[:look].min(), *(x[:count].mean() for count in earlier)] for x in logprobs])
    rest = (0.0,) * len(earlier)
    free = {"mean": (1.0, 0.0, *rest), "min": (0.0, 1.0, *rest)}
    return X.astype(np.float32), LadderColumns(tuple(range(X.shape[1])), free, logprobs=True)


def scores_at(data: Solutions, place: int) -> tuple[NDArray[np.intp], NDArray[np.int64], dict[str, Floats]] | None:
    """Returns the answers that long, the fold of each, and a held-out score of each by every way; None for too few."""
    look = data.looks[place]
    rows = np.flatnonzero((data.tokens >= look) & np.isfinite(data.states[:, place]).all(axis=(1, 2, 3)))
    y, groups, questions = data.y[rows], data.groups[rows], data.questions[rows]
    if min(y.sum(), len(y) - y.sum()) < FEWEST:
        return None
    forms = forms_of(questions.tolist())
    assert forms is not None
    words = np.array([[np.log1p(len(text.split()))] for text in questions.tolist()])
    logprobs = [data.logprobs[row] for row in rows]
    X, read = stream_columns(logprobs, look) if look else (np.zeros((len(rows), 2), np.float32), None)
    cells = data.states[rows, place].astype(np.float32)  # (n, layers, kinds, width)
    states = InMemory(Activations(tuple(map(str, rows)), cells, data.layers, KINDS))
    fold = np.zeros(len(y), np.int64)
    scores = {name: np.full(len(y), np.nan) for name in (*CONTROLS, *OURS, AGREEING)}
    for number, roles in enumerate(outer_folds(groups.tolist(), y, folds=FOLDS, seed=SEED)):
        test, learn = roles.test, roles.learning
        fold[test] = number
        # Controls. Calibration rows are for thresholds alone: nothing here learns from them.
        unseen, logits = [], []
        if read is not None:
            sample = LadderRows(X, y, groups, np.full(len(y), ""), tuple(f"c{i}" for i in range(X.shape[1])), read)
            ladder = fit_ladder(sample, roles, seed=SEED)
            own = unseen_scores(ladder, sample, learn, folds=REFERENCE_FOLDS, seed=SEED)
            platt = fit_platt(own, y[learn], rising=True)
            unseen, logits = [platt.logit(own)], [platt.logit(ladder.score(X))]
            scores["mean log-probability"][test] = X[test, 0]
            scores["terms"][test] = logits[0][test]
        form = fit_question_score(forms, y, groups, learn, folds=REFERENCE_FOLDS, seed=SEED)
        length = fit_question_score(words, y, groups, learn, folds=REFERENCE_FOLDS, seed=SEED)
        for name, part, values in (("form of the question", form, forms), ("length of the question", length, words)):
            scores[name][test] = 0.0 if part is None else part.linear(values)[test]
        scores["words of the question"][test] = tfidf(questions, y, learn)[test]
        if form is not None:
            unseen, logits = [*unseen, form.unseen[learn]], [*logits, form.linear(forms)]
        scores["form, terms"][test] = joined(unseen, logits, y, learn)[test] if unseen else 0.0
        # States: a probe alone, joined, and in the gate only where they pay.
        probe = fit_linear_probe(states, y, groups.tolist(), roles, positions=KINDS, seed=SEED)
        apart = unseen_probe_scores(probe, states, y, groups.tolist(), roles, seed=SEED)[learn]
        platt = fit_platt(apart, y[learn], rising=True)
        scores["states"][test] = probe.score(states)[test]
        both = [*unseen, platt.logit(apart)], [*logits, platt.logit(probe.score(states))]
        scores["states, form, terms"][test] = joined(*both, y, learn)[test]
        scores["gate"][test] = gate_scores(both, y, groups, learn)[test]
        known = learn[np.isfinite(data.agreement[rows][learn])]
        if len(known) > 100:
            scores[AGREEING][test] = by_agreement(states, data.agreement[rows], known, test)
    return rows, fold, scores


def joined(unseen: list[Floats], logits: list[Floats], y: NDArray[np.int64], learn: NDArray[np.int64]) -> Floats:
    """Returns the joined log-odds (n,) of several, weighed on scores that did not see the row."""
    weights, rates = weigh_parts(np.array(unseen), y[learn], np.zeros(len(learn), dtype=np.int64))
    return np.asarray(weights @ np.array(logits) + rates.mean)


def gate_scores(
    both: tuple[list[Floats], list[Floats]], y: NDArray[np.int64], groups: NDArray[np.str_], learn: NDArray[np.int64]
) -> Floats:
    """Returns the scores (n,) of a gate that reads a further part only where it pays in inner folds."""
    unseen, logits = both
    kept = [0]
    wide = np.full((len(unseen), len(y)), np.nan)
    wide[:, learn] = np.array(unseen)
    for part in range(1, len(unseen)):
        if pays(wide[part], wide[kept], y, groups.tolist(), np.zeros(len(y), dtype=np.int64), learn, SEED):
            kept.append(part)
    return joined([unseen[part] for part in kept], [logits[part] for part in kept], y, learn)


def tfidf(questions: NDArray[np.str_], y: NDArray[np.int64], learn: NDArray[np.int64]) -> Floats:
    """Returns the score (n,) of a logistic regression on the words of the question."""
    from sklearn.linear_model import LogisticRegression

    X = words_in(questions, learn)
    return np.asarray(LogisticRegression(C=3.0, max_iter=1000).fit(X[learn], y[learn]).decision_function(X))


def by_agreement(states: InMemory, agreement: Floats, known: NDArray[np.int64], test: NDArray[np.int64]) -> Floats:
    """Returns the scores (test,) of a probe that was taught by agreement, without a label."""
    rows = np.r_[known, test]
    block = states.read(*AGREEMENT_CELL)[rows]
    fold = np.r_[np.zeros(len(known), np.intp), np.ones(len(test), np.intp)]
    target = np.r_[agreement[known], np.zeros(len(test))]
    return score_held_out(block, target, fold, [AGREEMENT_PENALTY])[len(known) :, 0]


def measured(data: Solutions) -> dict[str, Any]:
    """Returns the figures of all looks."""
    looks = []
    for place, look in enumerate(data.looks):
        found = scores_at(data, place)
        if found is None:
            continue
        rows, fold, scores = found
        y, metric = data.y[rows], StratifiedAuroc(fold)
        weights = cluster_weights(data.groups[rows].tolist(), RESAMPLES, SEED)
        values = {
            name: metric_values(metric, y, score, weights) for name, score in scores.items() if np.isfinite(score).all()
        }
        entry: dict[str, Any] = {"look": look, "answers": len(rows), "right": float(y.mean()), "auroc": {}, "gain": {}}
        for name, of in values.items():
            entry["auroc"][name] = packed(resampled_interval(of.estimate, of.resamples, weights))
        for ours in ("form, terms", *OURS, AGREEING):
            if ours in values:
                against = {name: values[name] for name in CONTROLS if name in values and name != ours}
                entry["gain"][ours] = gains(control_comparison(values[ours], against, weights))
        entry["kept"] = kept_half(y, fold, scores, data.tokens[rows], look, weights)
        print(look, len(rows), {n: round(v[0], 3) for n, v in entry["auroc"].items()}, flush=True)
        looks.append(entry)
    return {
        "answers": len(data.y),
        "questions": len(set(data.groups.tolist())),
        "right": float(data.y.mean()),
        **cut_answers(data),
        "looks": looks,
    }


def cut_answers(data: Solutions) -> dict[str, float]:
    """Returns the share of answers that the token limit cut, and how many of these are right."""
    cut = ~data.ended
    return (
        {"cut": round(float(cut.mean()), 4), "right_of_cut": round(float(data.y[cut].mean()), 4)} if cut.any() else {}
    )


def kept_half(
    y: NDArray[np.int64],
    fold: NDArray[np.int64],
    scores: dict[str, Floats],
    tokens: NDArray[np.int64],
    look: int,
    weights: NDArray[np.integer],
) -> dict[str, Any]:
    """Returns what is right of the answers that are kept where each way stops the worse half of every fold's.

    Of each way the share right with its interval, the share of tokens saved, and how much more is right among those
    that the gate keeps. `all` stops nobody, which is also what a fixed position or a draw keeps in expectation.
    """
    kept = {"all": np.ones(len(y), np.bool_)}
    for name, score in scores.items():
        if np.isfinite(score).all():
            rank = np.zeros(len(y))
            for number in np.unique(fold):
                here = fold == number
                rank[here] = np.argsort(np.argsort(score[here], kind="stable")) / here.sum()
            kept[name] = rank >= 0.5

    def right(name: str) -> tuple[float, Floats]:
        chosen = weights * kept[name]
        return float(y[kept[name]].mean()), (chosen @ y) / np.maximum(chosen.sum(axis=1), 1)

    own, own_values = right("gate")
    found = {}
    for name, chosen in kept.items():
        share, values = right(name)
        found[name] = {
            "right": packed(resampled_interval(share, values, weights)),
            "saved": round(float(((tokens - look) * ~chosen).sum() / tokens.sum()), 4),
            "gate_more": packed(resampled_interval(own - share, own_values - values, weights)),
        }
    return found


def gains(comparison: ControlComparison) -> dict[str, Any]:
    """Returns control -> difference in AUROC with its interval, p after Holm, and whether the control is beaten."""
    return {one.name: [*packed(one.difference), round(one.p_holm, 4), one.beaten] for one in comparison.controls}


@click.group()
def main() -> None:
    """Measure, write the page."""


@main.command("measure")
@click.argument("name")
@click.argument("store", type=click.Path(exists=True, path_type=Path))
@click.argument("folder", type=click.Path(exists=True, path_type=Path))
@click.option("--ended", is_flag=True, help="Only of answers that ended by themselves.")
@click.option("--cut", is_flag=True, help="With the label whether the answer ends by itself, in place of right.")
def measure_command(name: str, store: Path, folder: Path, ended: bool, cut: bool) -> None:
    """Measure one set of solutions."""
    warnings.simplefilter("ignore")
    data = load(store, folder, ended=ended)
    keep_figures(FIGURES, measured(replace(data, y=data.ended.astype(np.int64)) if cut else data), name)


@main.command("page")
def page_command() -> None:
    """Write the section of docs/research/gate.md from the kept figures."""
    figures = read_figures(FIGURES)
    sets = {name: of for name, of in figures.items() if name not in ("abandon", CUT_SET)}
    ways = {"joined": OURS[1], "the gate": "gate", "taught by agreement": AGREEING}
    told, kept, rows = [], [], []
    for name, of in sets.items():
        looks = of["looks"]
        found = "; ".join(f"{words} {standing(way, looks)}" for words, way in ways.items() if way in looks[0]["gain"])
        told.append(f"- **{name}** ({of['answers']} answers, {of['right']:.0%} right; {len(looks)} looks): {found}.")
        kept.append(f"{name}. {half_kept(looks)}")
    for name, of in (*sets.items(), (CUT_SET, figures[CUT_SET])):
        rows += [
            [
                f"{name.replace(' coder', '')}, {one['look']}",
                *(cell(one["auroc"].get(way)) for way in SHOWN),
                over_the_strongest(one),
            ]
            for one in of["looks"]
        ]
    write(PAGE, "gate-states", [*told, in_all(figures["abandon"]), ""])
    foretold = cut_foretold(figures[CUT_SET], sets["1.5B coder, samples"])
    write(PAGE, "gate-kept", [part for one in (*kept, abandoned(figures["abandon"]), foretold) for part in (one, "")])
    head = ["coder, answers, tokens", *SHOWN, "states, form, terms over the strongest control"]
    write(PAGE, "gate-looks", [*markdown(head, rows), ""])


def over_the_strongest(look: dict[str, Any]) -> str:
    """Returns how far the joined states are over the strongest control, with its interval, and what that is called."""
    gains_of = look["gain"][OURS[1]]
    strongest = max(gains_of, key=lambda name: look["auroc"][name][0])
    difference, low, high, _, _ = gains_of[strongest]
    return f"{difference:+.3f} [{low:+.3f}, {high:+.3f}]"


def cut_foretold(foretold: dict[str, Any], samples: dict[str, Any]) -> str:
    """Returns sentences on the answers that the token limit cut, and on how well each way foretells it."""
    look = next(one for one in foretold["looks"] if one["look"] == CUT_LOOK)
    ahead_at, behind_at = standing(OURS[1], foretold["looks"]).split(", ")
    return (
        f"The token limit cut {samples['cut']:.0%} of the {samples['answers']} samples; {samples['right_of_cut']:.0%} "
        f"of those are right. Joined states foretell it: AUROC {look['auroc'][OURS[1]][0]:.2f} after {CUT_LOOK} "
        f"tokens, {over_the_strongest(look)} over the strongest control; ahead at {ahead_at} of "
        f"{len(foretold['looks'])} looks, behind at {behind_at}."
    )


def standing(ours: str, looks: list[dict[str, Any]]) -> str:
    """Returns at how many looks one way is ahead of all its controls, and behind one of them, after Holm."""
    compared = [one["gain"][ours] for one in looks]
    ahead_of_all = sum(all(gain[4] for gain in gains.values()) for gains in compared)
    behind_one = sum(any(gain[2] < 0 and gain[3] < 0.05 for gain in gains.values()) for gains in compared)
    return f"{ahead_of_all}, {behind_one}"


def cell(value: list[float] | None) -> str:
    """Returns an AUROC without its interval; a dash for none."""
    return "-" if value is None else f"{value[0]:.3f}"


def half_kept(looks: list[dict[str, Any]]) -> str:
    """Returns a sentence on what is right of the answers kept where half are stopped, at the last look up to 50."""
    one = max((look for look in looks if look["look"] <= COUNTS[-1]), key=lambda look: look["look"])
    kept = one["kept"]
    ways = {
        "the gate": "gate",
        "states": "states",
        "form of the question": "form of the question",
        "mean log-probability": MEAN,
    }
    told = ", ".join(f"{kept[way]['right'][0]:.1%} by {name}" for name, way in ways.items() if way in kept)
    return (
        f"Of the half kept after {one['look']} tokens ({kept['gate']['saved']:.0%} of the tokens saved) right are "
        f"{told}, {kept['all']['right'][0]:.1%} by a draw or a fixed position."
    )


ABANDONED = ("log-probabilities", "all that go on")
"""First words of the policies that are shown: what decides which answers are abandoned."""


def in_all(figures: dict[str, Any]) -> str:
    """Returns how often abandoning answers and sampling again was ahead of sampling on, over all policies."""
    gains = [
        row["gain"]
        for of in figures.values()
        for policy, rows in of["policies"].items()
        if policy.startswith(ABANDONED)
        for row in rows
    ]
    return (
        f"- **Abandoning answers and sampling again**, against sampling on at equal tokens: {ahead(gains)} of "
        f"{len(gains)} cases ahead, {behind(gains)} behind."
    )


def abandoned(figures: dict[str, Any]) -> str:
    """Returns sentences on abandoning answers and sampling again at equal tokens."""
    told = []
    for name, of in figures.items():
        for way in ABANDONED:
            gains = [row["gain"] for policy, rows in of["policies"].items() if policy.startswith(way) for row in rows]
            told.append(
                f"{name}, {way}: {ahead(gains)} of {len(gains)} ahead, {behind(gains)} behind "
                f"({100 * min(gain[0] for gain in gains):+.1f} to {100 * max(gain[0] for gain in gains):+.1f} points)"
            )
    return f"Answers abandoned and sampled again, against sampling on at equal tokens: {'; '.join(told)}."


if __name__ == "__main__":
    main()
