"""Measures gates for answers that the token limit will cut, on every recorded store that has such answers.

    python -m research.production.gate_ended measure
    python -m research.production.gate_ended page

The label is whether the answer ends by itself, which the finish reason says. `measure` fits the gate of `metaprobe
train gate --target ended` in outer folds by question, with the form of the question and without, and keeps the held-out
figures in docs/measured/gate_ended.json. `page` writes them into docs/research/gate.md and its tables.
"""

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from metaprobe import RunStore
from metaprobe.checkpoints.flagging import ENDED
from metaprobe.eval.answer_table import AnswerTable
from metaprobe.eval.gate_performance import HeldOutLooks, gate_report
from metaprobe.eval.metrics.bootstrap import cluster_weights, control_comparison, metric_values, resampled_interval
from metaprobe.eval.metrics.ranked import StratifiedAuroc
from metaprobe.probes.features import COUNTS, features
from metaprobe.records.errors import RecordError
from metaprobe.records.reading import LENGTH, STOP
from metaprobe.training.evidence import Evidence, load_evidence
from metaprobe.training.folds import Roles
from metaprobe.training.gate_inputs import GateInputs, fit_question_score, forms_of
from metaprobe.training.recipes.gate import GATE_SCHEMA, MIN_LOOK_ANSWERS, REFERENCE_FOLDS, judge_gates
from research.blocks import DOCS, MEASURED, ROOT, keep_figures, markdown, packed, read_figures, shown, write

PAGE, FIGURES = DOCS / "research" / "gate.md", MEASURED / "gate_ended.json"
RECORDED = ROOT / "recorded"
RATES = (0.05, 0.1)
RESAMPLES, SEED = 1000, 0
FEWEST = 32
"""Answers that ended, and answers that were cut, which a gate in five folds needs."""
SHORTEST_LIMIT = 16
"""Token limits below are of single numbers and words."""
MEAN, WORDS, FORM = "mean log-probability", "length of the question", "form of the question"
WAYS = {"alone": "log-probabilities", "question": "with the question"}
Floats = NDArray[np.float64]


@click.group()
def main() -> None:
    """Measure, write the page."""


@main.command("measure")
@click.option("--only", default="", help="Measure sets alone whose name holds this.")
def measure_command(only: str) -> None:
    """Judge the answers of each store by gates of other folds; some minutes."""
    warnings.simplefilter("ignore")
    for name, place in sets():
        if only in name:
            found = measured(*place)
            print(name, found.get("refused") or f"{found['answers']} answers, {found['cut']:.1%} cut", flush=True)
            keep_figures(FIGURES, found, name)


def sets() -> Iterator[tuple[str, tuple[str, str, str, int]]]:
    """Yields name -> store, stage, agent and token limit of all recorded answers of which enough were cut and enough
    ended."""
    for folder in sorted({path.parent for path in RECORDED.rglob("runs-*.parquet")}):
        store = str(folder.relative_to(RECORDED))
        ends: Counter[tuple[str, str, int, str]] = Counter()
        for run in RunStore(folder).runs():
            for call in run.calls:
                if call.logprobs is not None and call.sampling.max_tokens is not None:
                    ends[call.stage, call.agent, call.sampling.max_tokens, call.finish_reason] += 1
        for stage, agent, limit in sorted({key[:3] for key in ends}):
            fewest = min(ends[stage, agent, limit, end] for end in (STOP, LENGTH))
            if fewest >= FEWEST and limit >= SHORTEST_LIMIT:
                yield ", ".join(filter(None, (store, stage, agent, str(limit)))), (store, stage, agent, limit)


def measured(store: str, stage: str, agent: str, limit: int) -> dict[str, Any]:
    """Returns the figures of one set of answers; the reason alone where no gate can be fitted."""
    try:
        evidence = load_evidence(
            [RECORDED / store], target=ENDED, stage=stage, agent=agent or None, hidden=False, token_limit=limit
        )
        table, X = evidence.table, features(GATE_SCHEMA, list(evidence.table.logprobs))
        alone, splits = judge_gates(evidence, GateInputs(X), alphas=RATES, seed=SEED)
    except RecordError as error:
        return {"refused": str(error)}
    forms = forms_of(table.asked)
    judged = {"alone": alone}
    if forms is not None:
        judged["question"], _ = judge_gates(evidence, GateInputs(X, forms), alphas=RATES, seed=SEED)
    found = {
        "answers": len(table),
        "questions": len(set(table.groups.tolist())),
        "limit": limit,
        "cut": round(float(1 - table.y.mean()), 4),
        "cut_tokens": round(float(table.tokens[table.y == 0].sum() / table.tokens.sum()), 4),
        "looks": look_figures(evidence, judged, splits, forms),
    }
    for way, held_out in judged.items():
        found[way] = {
            f"{rate.alpha:g}": {
                "ended_stopped": packed(rate.false_alarms),
                "cut_stopped": packed(rate.bad_stopped),
                "tokens_saved": packed(rate.tokens_saved),
                "saved_in_cut": packed(rate.tokens_saved_bad),
            }
            for rate in gate_report(held_out, resamples=RESAMPLES, seed=SEED).rates
        }
    return found


def look_figures(
    evidence: Evidence, judged: dict[str, HeldOutLooks], splits: Sequence[Roles], forms: NDArray[np.float32] | None
) -> list[dict[str, Any]]:
    """Returns the AUROC of each way and control at each look, and what each way gains over each control."""
    table, looks = evidence.table, []
    fold = judged["alone"].fold
    words = np.array([[np.log1p(len(text.split()))] for text in table.asked])
    for column, look in enumerate(COUNTS):
        scores = {way: held_out.probability[:, column] for way, held_out in judged.items()}
        rows = np.flatnonzero(np.isfinite(list(scores.values())).all(axis=0))
        if np.bincount(table.y[rows], minlength=2).min() < FEWEST:
            continue
        y, metric = table.y[rows], StratifiedAuroc(fold[rows])
        mean = np.array([values[:look].mean() for values in table.logprobs])
        sign = 1.0 if float(metric(y, mean[rows])) >= 0.5 else -1.0  # sure beginnings may go with either end
        controls = {MEAN: sign * mean}
        if forms is not None:
            controls[WORDS] = question_score(table, words, splits, look)
            controls[FORM] = question_score(table, forms, splits, look)
        weights = cluster_weights(table.groups[rows].tolist(), RESAMPLES, SEED)
        values = {name: metric_values(metric, y, score[rows], weights) for name, score in (scores | controls).items()}
        beside = {name: values[name] for name in controls}
        looks.append(
            {
                "look": look,
                "answers": len(rows),
                "cut": round(float(1 - y.mean()), 4),
                "sign_of_mean": sign,
                "auroc": {
                    name: packed(resampled_interval(of.estimate, of.resamples, weights)) for name, of in values.items()
                },
                "gain": {
                    way: {
                        control.name: [*packed(control.difference), round(control.p_holm, 4), control.beaten]
                        for control in control_comparison(values[way], beside, weights).controls
                    }
                    for way in judged
                },
            }
        )
    return looks


def question_score(table: AnswerTable, counts: NDArray[np.floating[Any]], splits: Sequence[Roles], look: int) -> Floats:
    """Returns a held-out score (n,) by counts of the question alone (n, d), learned from the answers of a look."""
    score = np.zeros(len(table))
    for roles in splits:
        learn = roles.learning[table.tokens[roles.learning] >= look]
        if np.bincount(table.y[learn], minlength=2).min() >= MIN_LOOK_ANSWERS:
            fit = fit_question_score(counts, table.y, table.groups, learn, folds=REFERENCE_FOLDS, seed=SEED)
            if fit is not None:
                score[roles.test] = fit.linear(counts[roles.test])
    return score


@main.command("page")
def page_command() -> None:
    """Write the blocks of docs/research/gate.md and of its tables from the kept figures."""
    figures = read_figures(FIGURES)
    fitted = {name: found for name, found in figures.items() if "refused" not in found}
    write(PAGE, "gate-ended", [in_words(fitted), ""])
    rows = [
        [
            name,
            f"{found['answers']} ({found['questions']})",
            f"{found['cut']:.0%}",
            f"{found['cut_tokens']:.0%}",
            *at_rate(found, "0.05"),
            *at_rate(found, "0.1"),
        ]
        for name, found in fitted.items()
    ]
    head = ["store, stage, limit", "answers (questions)", "cut", "tokens of cut answers"]
    stopped = ("ended stopped", "cut stopped", "tokens saved", "of these in cut")
    head += [f"{name} (%), at {rate:g}" for rate in RATES for name in stopped]
    refused = [f"- {name}: {found['refused'].rstrip('.')}." for name, found in figures.items() if "refused" in found]
    write(PAGE, "gate-ended-stores", [*markdown(head, rows), "", *refused, *([""] if refused else [])])
    write(PAGE, "gate-ended-looks", [*look_table(fitted), ""])


def best_way(found: dict[str, Any]) -> str:
    """Returns the gate that is exported: the one that may read the question, if the questions are stored."""
    return "question" if "question" in found else "alone"


def at_rate(found: dict[str, Any], rate: str) -> list[str]:
    """Returns what the gate stops and saves at a rate, as cells."""
    shares = found[best_way(found)].get(rate)
    names = ("ended_stopped", "cut_stopped", "tokens_saved", "saved_in_cut")
    return ["-"] * len(names) if shares is None else [shown(shares[name], ".1f", 100) for name in names]


def look_table(fitted: dict[str, Any]) -> list[str]:
    """Returns a table of AUROC at each look, with the gain over the strongest control."""
    rows = []
    for name, found in fitted.items():
        for look in found["looks"]:
            auroc = {way: f"{value[0]:.3f}" for way, value in look["auroc"].items()}
            gains = [shown(strongest_gain(look, way), "+.3f") if way in auroc else "-" for way in WAYS]
            cells = (auroc.get(way, "-") for way in (*WAYS, MEAN, WORDS, FORM))
            rows.append([f"{name}; {look['look']}", f"{look['cut']:.0%}", *cells, *gains])
    over = [f"{words}, over the strongest control" for words in WAYS.values()]
    return markdown(
        ["set; tokens seen", "cut", *(f"gate: {words}" for words in WAYS.values()), MEAN, WORDS, FORM, *over], rows
    )


def strongest_gain(look: dict[str, Any], way: str) -> list[float]:
    """Returns the difference in AUROC from the strongest control, with its interval."""
    gains: dict[str, list[float]] = look["gain"][way]
    return gains[max(gains, key=lambda name: float(look["auroc"][name][0]))]


def in_words(fitted: dict[str, Any]) -> str:
    """Returns sentences on what gates for answers that will be cut see and save."""
    looks = [look for found in fitted.values() for look in found["looks"]]
    told = []
    for way, words in {"alone": "by log-probabilities alone", "question": "with the question"}.items():
        gains = [look["gain"][way] for look in looks if way in look["gain"]]
        ahead_of_all = sum(all(gain[4] for gain in each.values()) for each in gains)
        behind_one = sum(any(gain[2] < 0 and gain[3] < 0.05 for gain in each.values()) for each in gains)
        told.append(f"{ahead_of_all} of {len(gains)} looks {words}, behind one at {behind_one}")
    chosen = [found[best_way(found)].get("0.1") for found in fitted.values()]
    shares = [share for share in chosen if share is not None]
    clearly = sum(share["cut_stopped"][1] > share["ended_stopped"][2] for share in shares)
    broken = sum(share["ended_stopped"][1] > 0.1 for share in shares)
    cut = [found["cut"] for found in fitted.values()]
    return (
        f"Gates taught by finish reasons on {len(fitted)} recorded sets ({min(cut):.0%} to {max(cut):.0%} cut) are "
        f"ahead of every control at {'; at '.join(told)}. Promised 10%, they stop "
        f"{of_sets(shares, 'ended_stopped')} of the answers that end (clearly above 10% on {broken} of {len(shares)} "
        f"sets) and {of_sets(shares, 'cut_stopped')} of the cut ones (clearly more on {clearly}). This saves "
        f"{of_sets(shares, 'tokens_saved')} of all tokens, {of_sets(shares, 'saved_in_cut')} in cut answers "
        "([each set](tables/gate.md#answers-that-will-be-cut))."
    )


def of_sets(shares: Sequence[dict[str, list[float]]], name: str) -> str:
    """Returns the least and the largest share of the sets."""
    values = [share[name][0] for share in shares]
    return f"{min(values):.0%} to {max(values):.0%}"


if __name__ == "__main__":
    main()
