"""Measures what the streaming gate sees and saves on the recorded runs, into docs/research/gate.md.

    python -m research.production.gate measure
    python -m research.production.gate promise
    python -m research.production.gate page

`measure` trains a gate on each store by the recipe of `metaprobe train gate`; the numbers are of held-out folds by
group, and are kept in docs/measured/gate.json.
"""

import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import click
import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import UntrustedCheckpoint
from metaprobe.eval.answer_table import AnswerTable
from metaprobe.eval.gate_performance import HeldOutLooks, first_below, interval_text
from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, mean_interval, paired_difference
from metaprobe.eval.metrics.bootstrap import interval as interval_of
from metaprobe.eval.metrics.ranked import StratifiedAuroc
from metaprobe.probes.features import COUNTS, features
from metaprobe.records.errors import RecordError
from metaprobe.routing.gate import LOGPROBS_ALONE, QUESTION_INPUT
from metaprobe.training.evidence import load_evidence
from metaprobe.training.folds import Roles, outer_folds
from metaprobe.training.gate_inputs import GateInputs, fit_question_score, forms_of
from metaprobe.training.ladder import fit_ladder
from metaprobe.training.recipes import gate as recipe
from metaprobe.training.recipes.gate import (
    GATE_SCHEMA,
    MIN_LOOK_ANSWERS,
    REFERENCE_FOLDS,
    fit_gate,
    judge_gates,
    one_a_group,
    write_gate,
)
from metaprobe.training.training_options import GateOptions
from research.blocks import ROOT, ahead, behind, columns, markdown, points, read_figures, write, write_figures

PAGE = ROOT / "docs" / "research" / "gate.md"
FIGURES = ROOT / "docs" / "measured" / "gate.json"
RUNS: dict[str, tuple[str, ...]] = {
    "SmolLM2-135M, MetaCog-Eval, 700 items": ("metacog-every-agent", "alpha"),
    "Qwen2.5-Coder-0.5B, MetaCog-Eval, 700 items": ("metacog-every-agent", "beta"),
    "Qwen2.5-Coder-1.5B, MetaCog-Eval, 700 items": ("metacog-every-agent", "gamma"),
    "Qwen2.5-Coder-0.5B, GSM8K, 200 problems, answers of Self-Refine": ("gsm8k-self-refine", ""),
    "Qwen2.5-Coder-0.5B, GSM8K, 1,000 problems with working": ("states/qwen-coder-0.5b/gsm8k", ""),
    "Qwen2.5-Coder-1.5B, GSM8K, 1,000 problems with working": ("states/qwen-coder-1.5b/gsm8k", ""),
}
"""Name of a measurement -> store in recorded/, and agent."""
RATES = (0.05, 0.1, 0.2, 0.3)
PROMISE, PROMISED_RATE, SPLITS = FIGURES.with_name("gate_promise.json"), 0.1, 20
ENDS = ("estimate", "low", "high")
CHANCE_DRAWS, CHANCE_SHARE = 2000, 0.975
"""Draws of scores that know nothing, and the share of them whose mean over the splits is at most what chance allows."""
ALONE, QUESTION = "log-probabilities alone", "question"
"""A gate reads the log-probabilities alone, or the form of the question as well."""


@click.group()
def main() -> None:
    """Measure, write the page."""


@main.command("measure")
@click.option("--only", default="", help="Measure sets alone whose name holds this.")
def measure_command(only: str) -> None:
    """Train a gate on each store; some three minutes of one core."""
    kept = read_figures(FIGURES)
    for title, (store, agent) in RUNS.items():
        if only in title:
            kept[title] = measured(store, agent)
            write_figures(FIGURES, kept)


def measured(store: str, agent: str) -> dict[str, Any]:
    """The report of one gate, and the audits that it failed; `agent` is empty where the store has one only."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UntrustedCheckpoint)
        evidence = load_evidence([ROOT / "recorded" / store], stage="answer", agent=agent or None, hidden=False)
        options = GateOptions(out=Path(folder) / "gate", command="research/production/gate.py")
        checkpoint, report = write_gate(evidence, options)
    failed = [name for name, audit in checkpoint.manifest.audits.items() if not audit.passed]
    table, X = evidence.table, features(GATE_SCHEMA, list(evidence.table.logprobs))
    forms = forms_of(table.asked)
    assert forms is not None
    own, splits = judge_gates(evidence, GateInputs(X, forms), alphas=RATES)
    alone, _ = judge_gates(evidence, GateInputs(X), alphas=RATES)
    with mock.patch.object(recipe, "fit_ladder", partial(fit_ladder, climb=False)):
        mean, _ = judge_gates(evidence, GateInputs(X), alphas=RATES)
    return {
        "report": asdict(report),
        "failed": failed,
        "reads_question": "question" in checkpoint.manifest.contract,
        "by_the_mean": stopped_beside(own, mean),
        "without_question": stopped_beside(own, alone),
        "question": question_looks(own, alone, form_scores(table, forms, splits)),
    }


def stopped_beside(own: HeldOutLooks, other: HeldOutLooks) -> dict[str, Any]:
    """Shares of the good and of the bad answers that two gates stop, and their difference, by the rate."""
    table, found = own.table, {}
    for alpha in sorted(own.fired.keys() & other.fired.keys()):
        stopped = [(gate.fired[alpha] > 0).astype(float) for gate in (own, other)]
        found[f"{alpha:g}"] = {
            name: [
                float(stopped[0][rows].mean()),
                float(stopped[1][rows].mean()),
                asdict(mean_interval((stopped[0] - stopped[1])[rows], cluster_weights(table.groups[rows].tolist()))),
            ]
            for name, rows in (("good", table.y == 1), ("bad", table.y == 0))
        }
    return found


def form_scores(table: AnswerTable, forms: NDArray[np.float32], splits: Sequence[Roles]) -> NDArray[np.float64]:
    """Returns held-out scores (n, looks) by the form of the question alone, learned from the answers of each look."""
    scores = np.full((len(table), len(COUNTS)), np.nan)
    for roles in splits:
        for column, look in enumerate(COUNTS):
            learn, test = (rows[table.tokens[rows] >= look] for rows in (roles.learning, roles.test))
            if np.bincount(table.y[learn], minlength=2).min() < MIN_LOOK_ANSWERS:
                continue
            fitted = fit_question_score(forms, table.y, table.groups, learn, folds=REFERENCE_FOLDS, seed=0)
            scores[test, column] = 0.0 if fitted is None else fitted.linear(forms[test])
    return scores


def question_looks(own: HeldOutLooks, alone: HeldOutLooks, form: NDArray[np.float64]) -> list[dict[str, Any]]:
    """AUROC at each look: the gate less one that is not told the question, the form alone, and the gate less that."""
    table, looks = own.table, []
    for column, look in enumerate(own.looks):
        judged = [gate.probability[:, column] for gate in (own, alone)] + [form[:, column]]
        rows = np.flatnonzero(np.isfinite(judged).all(axis=0))
        if len(np.unique(table.y[rows])) < 2:
            continue
        weights, in_fold = cluster_weights(table.groups[rows].tolist()), StratifiedAuroc(own.fold[rows])
        y, (with_it, without, by_form) = table.y[rows], (score[rows] for score in judged)
        looks.append(
            {
                "look": look,
                "without": asdict(interval_of(in_fold, y, without, weights)),
                "gain": asdict(paired_difference(in_fold, y, with_it, without, weights)),
                "form": asdict(interval_of(in_fold, y, by_form, weights)),
                "over_form": asdict(paired_difference(in_fold, y, with_it, by_form, weights)),
            }
        )
    return looks


@main.command("promise")
@click.option("--only", default="", help="Count on sets alone whose name holds this.")
def promise_command(only: str) -> None:
    """Fit gates on 20 splits by question and count the good test answers that they stop, with and without the question;
    some minutes."""
    kept = read_figures(PROMISE)
    for title, (store, agent) in RUNS.items():
        if only in title:
            evidence = load_evidence([ROOT / "recorded" / store], stage="answer", agent=agent or None, hidden=False)
            X = features(GATE_SCHEMA, list(evidence.table.logprobs))
            kept[title] = {name: promise_kept(evidence.table, X, splits) for name, splits in SPLITTERS.items()}
            write_figures(PROMISE, kept)


def first_fold(table: AnswerTable, seed: int) -> Roles:
    """Returns the first of the product's outer folds, which are balanced: its test groups are no draw by chance."""
    return next(outer_folds(table.groups.tolist(), table.y, folds=5, seed=seed))


def drawn_groups(table: AnswerTable, seed: int) -> Roles:
    """Returns roles for which the groups are drawn by chance, as many to each role as in an outer fold."""
    names, place = np.unique(table.groups, return_inverse=True)
    rank = np.random.default_rng([1, seed]).permutation(len(names))[place] / len(names)
    test, calibration, selection = 0.2, 0.36, 0.52
    return Roles(
        train=np.flatnonzero(rank >= selection),
        selection=np.flatnonzero((rank >= calibration) & (rank < selection)),
        calibration=np.flatnonzero((rank >= test) & (rank < calibration)),
        test=np.flatnonzero(rank < test),
    )


SPLITTERS: dict[str, Callable[[AnswerTable, int], Roles]] = {"first fold": first_fold, "drawn groups": drawn_groups}


def promise_kept(
    table: AnswerTable, X: NDArray[np.float32], splits: Callable[[AnswerTable, int], Roles]
) -> dict[str, Any]:
    """Returns the share of good test answers, one a group, that is stopped in each split, with and without the
    question, at a promise of `PROMISED_RATE`.

    Beside it the mean share over these splits that scores without any knowledge pass once in forty (`mean_allowed`).
    Splits are of the same answers, so that their mean varies more than that of as many new data sets. Empty where the
    answers of a split are too few for a gate, or for such a promise.

    Args:
        table: the answers.
        X: (n, d) features of `GATE_SCHEMA`.
        splits: returns the roles of a split, by its seed.
    """
    inputs = GateInputs(X, forms_of(table.asked))
    shares: dict[str, list[float]] = {}
    rng, passed = np.random.default_rng(0), np.zeros(CHANCE_DRAWS)
    blind = rng.random((CHANCE_DRAWS, len(table)), dtype=np.float32)
    for split in range(SPLITS):
        roles = splits(table, split)
        try:
            gate = fit_gate(inputs, table, roles, alphas=[PROMISED_RATE], seed=split)
        except RecordError:
            return {}
        if PROMISED_RATE not in gate.alphas:
            return {}
        good, calibration = (
            one_a_group(rows[table.y[rows] == 1], table.groups, seed=split) for rows in (roles.test, roles.calibration)
        )
        for name, beside in ((ALONE, LOGPROBS_ALONE), (QUESTION, QUESTION_INPUT)):
            if not gate.reads(beside):
                continue
            p = gate.probability(inputs.rows(good).only(beside), table.tokens[good])
            below = gate.limits(PROMISED_RATE, beside)
            share = float((first_below(p, below, COUNTS) > 0).mean())
            shares.setdefault(name, []).append(round(share, 4))
        # The same promise, made for scores of chance: below the k-th smallest of m lie k / (m + 1) in expectation.
        place = int((len(calibration) + 1) * PROMISED_RATE) - 1
        limit = np.partition(blind[:, calibration], place, axis=1)[:, place]
        passed += (blind[:, good] < limit[:, None]).mean(axis=1) / SPLITS
    return {"shares": shares, "mean_allowed": round(float(np.quantile(passed, CHANCE_SHARE)), 4)}


@main.command("page")
def page_command() -> None:
    """Write the section of docs/research/gate.md from the numbers."""
    lines: list[str] = []
    for title, found in read_figures(FIGURES).items():
        audits = f"failed audits: {', '.join(found['failed'])}" if found["failed"] else "all audits passed"
        told = gate_markdown(found["report"])
        beside = [*stopped_table(found["by_the_mean"], "by the mean alone"), ""]
        if "question" in found:
            asked = "The gate reads the form of the question." if found["reads_question"] else NOT_READ
            beside += [asked, "", *columns([(look,) for look in found["question"]], QUESTION_COLUMNS), ""]
            beside += [*stopped_table(found["without_question"], "without the question"), ""]
        lines += [f"### {title}", "", *told, f"- {audits}.", "", *beside]
    write(PAGE, "gate-answer", [answer(read_figures(FIGURES)), ""])
    write(PAGE, "gate", lines)
    write(PAGE, "question", [asked_in_words(read_figures(FIGURES)), ""])
    write(PAGE, "promise", promise_in_words(read_figures(PROMISE)))
    write(PAGE, "promise-splits", promise_table(read_figures(PROMISE)))


def answer(figures: dict[str, Any]) -> str:
    """Returns the first paragraph of the page."""
    reports = [found["report"] for found in figures.values()]
    gains = [[look["gain"][end] for end in ENDS] for report in reports for look in report["looks"]]
    rates = [rate for report in reports for rate in report["rates"] if rate["alpha"] == PROMISED_RATE]
    good, bad = ([rate[kind]["estimate"] for rate in rates] for kind in ("false_alarms", "bad_stopped"))
    highest = [rate["false_alarms"]["high"] for rate in rates]
    uses = [[use["over_random"][end] for end in ENDS] for rate in rates for use in rate["uses"]]
    told, over_form = looks_told(figures)
    tasks = sorted({title.split(", ")[1] for title, here in told.items() if here})
    count = sum(map(len, told.values()))
    return (
        f"At {ahead(gains)} of {len(gains)} looks (a gate judges an answer after {COUNTS[0]} to {COUNTS[-1]} tokens) "
        f"the streaming gates are ahead of the mean log-probability of the same tokens, and behind it at "
        f"{behind(gains)}. {'All' if count == ahead(gains) else count} of these are of gates (on {', '.join(tasks)}) "
        f"that read the form of the question, which the mean is not told: over that form alone these gates are ahead "
        f"at {over_form} of the {count}, and the mean joined with the form was not measured. {len(rates)} of "
        f"{len(reports)} gates may promise to stop at most {PROMISED_RATE:.0%} of the good answers: they stop "
        f"{min(good):.1%} to {max(good):.1%} of the good answers (upper ends {min(highest):.1%} to "
        f"{max(highest):.1%}) and {min(bad):.1%} to {max(bad):.1%} of the bad ones. Against replacing as many answers "
        "at random, "
        f"accuracy is higher in {ahead(uses)} of {len(uses)} cases and lower in {behind(uses)}."
    )


def looks_told(figures: dict[str, Any]) -> tuple[dict[str, list[int]], int]:
    """Returns title of each gate that reads the form of the question -> looks at which it is ahead of the mean
    log-probability, and at how many of these looks it is ahead of the form alone too."""
    told: dict[str, list[int]] = {}
    over_form = 0
    for title, found in figures.items():
        if found["reads_question"]:
            told[title] = [look["look"] for look in found["report"]["looks"] if look["gain"]["low"] > 0]
            over_form += sum(look["over_form"]["low"] > 0 for look in found["question"] if look["look"] in told[title])
    return told, over_form


def promise_in_words(figures: dict[str, Any]) -> list[str]:
    """Returns sentences on how gates keep their promise, in the mean over splits: a line for each way to split."""
    lines = []
    for name, words in WORDS_OF_SPLITS.items():
        told = []
        for way in (ALONE, QUESTION):
            kept = {title: one[name] for title, one in figures.items() if len(_shares(one[name], way)) == SPLITS}
            means = {title: float(np.mean(_shares(one, way))) for title, one in kept.items()}
            over = [title for title, one in kept.items() if means[title] > one["mean_allowed"]]
            named = ", ".join(
                f"{means[title]:.1%} on {short_title(title)} (chance: {kept[title]['mean_allowed']:.1%})"
                for title in over
            )
            told.append(
                f"{min(means.values()):.1%} to {max(means.values()):.1%} by {way}, above chance on {len(over)} of "
                f"{len(means)} stores{f': {named}' * bool(over)}"
            )
        lines.append(f"- {words}: {'; '.join(told)}.")
    return [f"Good answers stopped in the mean of {SPLITS} splits, promised {PROMISED_RATE:.0%}:", "", *lines, ""]


def _shares(found: dict[str, Any], way: str) -> list[float]:
    """Returns the share of good answers that each split stops; nothing where no gate was fitted this way."""
    return list(found.get("shares", {}).get(way, ()))


WORDS_OF_SPLITS = {
    "drawn groups": "Groups drawn by chance",
    "first fold": "The first balanced fold",
}
"""Ways to split in the words of the page."""


def short_title(title: str) -> str:
    """Returns the name of a measurement without its number of questions: model and task."""
    return title.rpartition(", ")[0]


def asked_in_words(figures: dict[str, Any]) -> str:
    """Returns sentences on what the form of the question adds to the gate."""
    told = [found for found in figures.values() if "question" in found]
    looks = [look for found in told if found["reads_question"] for look in found["question"]]
    gains, over = ([list(look[of].values()) for look in looks] for of in ("gain", "over_form"))
    stopped = [
        (short_title(title), found["without_question"]["0.1"]["bad"])
        for title, found in figures.items()
        if found.get("reads_question") and "0.1" in found["without_question"]
    ]
    shares = "; ".join(f"{title}: {ours:.1%} for {without:.1%}" for title, (ours, without, _) in stopped)
    return (
        f"{sum(found['reads_question'] for found in told)} of {len(told)} gates read the form of the question. At "
        f"their {len(looks)} looks AUROC is higher than without it at {ahead(gains)} and lower at {behind(gains)}, and "
        f"higher than by that form alone at {ahead(over)} and lower at {behind(over)}. Of the bad answers they stop, "
        f"at a promise of 0.1, {shares}."
    )


def promise_table(figures: dict[str, Any]) -> list[str]:
    """Returns a table of how the promise was kept on each store and kind of split."""
    rows = []
    for title, by_splits in figures.items():
        for name, found in by_splits.items():
            if not found:
                rows.append([title, name, "too few answers", "", "", ""])
                continue
            alone, told = (found["shares"].get(way, []) for way in (ALONE, QUESTION))
            rows.append(
                [
                    title,
                    name,
                    f"{np.mean(alone):.1%}",
                    f"{min(alone):.1%} to {max(alone):.1%}",
                    f"{found['mean_allowed']:.1%}",
                    f"{np.mean(told):.1%} in {len(told)} splits" if told else "-",
                ]
            )
    head = ["answers", "test groups", "good stopped, mean", "of the splits", "chance allows a mean of"]
    return markdown([*head, "with the question, where it is read"], rows)


def stopped_table(found: dict[str, Any], other: str) -> list[str]:
    """Returns what two gates stop as a Markdown table."""
    rows = []
    for alpha, shares in found.items():
        rows.append([alpha])
        for ours, mean, gap in (shares["good"], shares["bad"]):
            rows[-1] += [f"{ours:.1%}", f"{mean:.1%}", points([gap[end] for end in ENDS])]
    head = ["promised", "good stopped", other, "points", "bad stopped", other, "points"]
    return markdown(head, rows) if rows else ["No rate is allowed in every fold, so nothing is stopped by either."]


def gate_markdown(report: dict[str, Any]) -> list[str]:
    """Returns the numbers as Markdown tables."""
    looks: dict[str, Callable[..., object]] = {
        "tokens seen": lambda look: look["look"],
        "answers that long": lambda look: f"{look['share']:.0%}",
        "AUROC": lambda look: interval(look["auroc"]),
        "mean log-probability of them": lambda look: interval(look["mean_logprob"]),
        "gain": lambda look: interval(look["gain"], "+.3f"),
        "finished answer": lambda look: interval(look["full"]),
    }
    rates: dict[str, Callable[..., object]] = {
        "promised": lambda rate, use: f"{rate['alpha']:g}",
        "good answers stopped": lambda rate, use: interval(rate["false_alarms"], ".1%"),
        "bad answers stopped": lambda rate, use: interval(rate["bad_stopped"], ".1%"),
        "at token (median)": lambda rate, use: "-" if np.isnan(rate["median_look"]) else f"{rate['median_look']:.0f}",
        "stopped answers are": lambda rate, use: use["use"],
        "accuracy": lambda rate, use: f"{use['accuracy_before']:.1%} -> {interval(use['accuracy'], '.1%')}",
        "over replacing as many at random, points": lambda rate, use: interval(use["over_random"], "+.1f", 100),
        "tokens a question": lambda rate, use: interval(use["tokens"], ".1f"),
        "saved against giving up the same ones finished": lambda rate, use: interval(use["saved"], ".1%"),
        "saved against the full predictor": lambda rate, use: interval(use["saved_full"], ".1%"),
    }
    uses = [(rate, use) for rate in report["rates"] for use in rate["uses"]]
    tables = [*columns([(look,) for look in report["looks"]], looks), "", *columns(uses, rates)]
    return [*tables, "", *(f"- {assumption}" for assumption in report["assumptions"])]


def interval(value: dict[str, Any], form: str = ".3f", scale: float = 1.0) -> str:
    """Returns a kept interval as the package writes intervals in its own tables."""
    return interval_text(Interval(**value), form, scale)


NOT_READ = "The gate does not read the form of the question: it paid at too few looks."
QUESTION_COLUMNS: dict[str, Callable[..., object]] = {
    "tokens seen": lambda look: look["look"],
    "gate without the question": lambda look: interval(look["without"]),
    "gate, less that": lambda look: interval(look["gain"], "+.3f"),
    "form of the question alone": lambda look: interval(look["form"]),
    "gate, less that form": lambda look: interval(look["over_form"], "+.3f"),
}


if __name__ == "__main__":
    main()
