"""Measures confidence that is learned without labels, from agreement of samples, on questions left out.

python -m research.agreement.measure measure [--only STORE ...] [--draws N] [--work FOLDER]
python -m research.agreement.measure page
"""

import json
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from math import comb
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from metaprobe.eval.metrics.bootstrap import cluster_weights, resampled_interval
from metaprobe.eval.metrics.calibration import brier_skill, debiased_ece
from metaprobe.eval.metrics.ranked import auroc
from metaprobe.routing.panel.compared_answers import comparable_form
from metaprobe.routing.panel.model_rows import UNREADABLE_CLASS
from metaprobe.training.agreement import SampledQuestion, sampled_questions
from metaprobe.training.ladder import ALL_TERMS
from metaprobe.training.panel.same_answers import classes_by
from research.agreement.ways import (
    BEST_FREE,
    CHOOSING,
    CUT,
    FEW_LABELS,
    FREE,
    LABELS,
    MANY,
    NONE_KEPT,
    PARTNERS,
    REFUSED,
    SAMPLINGS,
    SHUFFLED,
    USUAL_FREE,
    Draw,
    Floats,
    Samples,
    agreement_way,
    draw_of,
    labels_way,
    read_samples,
)
from research.blocks import ROOT, ahead, behind, keep_figures, markdown, packed, read_figures, signed, write
from research.panel.measure import SAMPLED

KEPT = ROOT / "docs" / "measured" / "no_labels.json"
PAGE = ROOT / "docs" / "research" / "no-labels.md"
LADDER_PAGE = ROOT / "docs" / "research" / "ladder.md"
DRAWS = 20
RESAMPLES = 400
"""Resamples of questions and of draws."""
ECE_RESAMPLES = 200
"""Resamples of questions by which the calibration error of each draw is freed of noise."""
SCOPES = ("all", "ended")
"""All answers, those that were cut last; and answers that ended by themselves."""
STRONGEST_FREE, STRONGEST_LABELS = "strongest free number", "strongest of 50 labels"
"""Controls that are chosen in hindsight, by their mean AUROC on the very answers."""


@click.group()
def main() -> None:
    """Measure, write the page."""


def drawn(name: str, samples: Samples, seed: int, work: Path) -> Draw:
    """Returns a draw, from the folder where it was made before."""
    path = work / f"{SAMPLED[name].replace('/', '-')}-{seed}.npz"
    if path.exists():
        with np.load(path, allow_pickle=False) as kept:
            parts: dict[str, dict[str, Any]] = {"scores": {}, "probabilities": {}}
            for key in kept.files:
                part, _, way = key.partition("|")
                if way:
                    parts[part][way] = kept[key].astype(np.float64)
            return Draw(kept["test"], parts["scores"], parts["probabilities"], json.loads(str(kept["reached"])))
    draw = draw_of(samples, seed, partners=name.startswith("0.5B"))
    arrays: dict[str, Any] = {f"scores|{way}": values for way, values in draw.scores.items()}
    arrays |= {f"probabilities|{way}": values for way, values in draw.probabilities.items()}
    work.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, test=draw.test, reached=json.dumps(draw.reached), **arrays)
    return draw


def figures_of(samples: Samples, draws: Sequence[Draw]) -> dict[str, Any]:
    """Returns what is kept of one store: means over draws, paired differences, calibration, and agreement itself."""
    ways = list(dict.fromkeys(way for draw in draws for way in draw.scores))
    kept: dict[str, Any] = {
        "questions": len(samples.runs),
        "answers": len(samples.y),
        "groups": len(set(samples.groups.tolist())),
        "cut": round(float(1 - samples.ended.mean()), 4),
        "right": round(float(samples.y.mean()), 4),
        "right_of_ended": round(float(samples.y[samples.ended].mean()), 4),
        "tokens": round(float(samples.tokens.mean()), 1),
        "draws": len(draws),
        "ways": {},
    }
    for way in ways:
        values = {
            scope: [_auroc(samples, draw, way, scope) for draw in draws if way in draw.scores] for scope in SCOPES
        }
        reached = Counter(draw.reached[way] for draw in draws if way in draw.reached)
        kept["ways"][way] = {
            **{scope: round(float(np.nanmean(values[scope])), 4) for scope in SCOPES},
            "sd": round(float(np.nanstd(values["all"])), 4),
            "draws": len(values["all"]),
            **({"reached": dict(reached.most_common())} if reached else {}),
        }
    kept["strongest"] = {
        STRONGEST_FREE: {scope: _strongest(kept, FREE, scope) for scope in SCOPES},
        STRONGEST_LABELS: {scope: _strongest(kept, FIFTY, scope) for scope in SCOPES},
    }
    controls = {agreement_way(*sampling): _controls_of(sampling, kept["strongest"]) for sampling in SAMPLINGS}
    few = {labels_way(count): (labels_way(count, CHOOSING), USUAL_FREE) for count in LABELS}
    controls |= {way: {other: dict.fromkeys(SCOPES, other) for other in others} for way, others in few.items()}
    kept["over"] = paired_differences(samples, draws, controls)
    kept["calibration"] = _calibration(samples, draws)
    kept["same_again"] = _same_again(samples)
    return kept


FIFTY = tuple(labels_way(50, kind) for kind in ("", CHOOSING, ALL_TERMS, NONE_KEPT, f"{ALL_TERMS}, {NONE_KEPT}"))
"""Recipes for 50 labels."""


def _strongest(kept: dict[str, Any], ways: Iterable[str], scope: str) -> str:
    return max(ways, key=lambda way: float(kept["ways"][way][scope]))


def _rows(samples: Samples, draw: Draw, scope: str) -> NDArray[np.bool_]:
    return np.ones(len(draw.test), dtype=bool) if scope == "all" else samples.ended[draw.test]


def _auroc(samples: Samples, draw: Draw, way: str, scope: str) -> float:
    rows = _rows(samples, draw, scope)
    return float(auroc(samples.y[draw.test][rows], draw.scores[way][rows]))


def paired_differences(
    samples: Samples, draws: Sequence[Draw], compared: dict[str, dict[str, dict[str, str]]]
) -> dict[str, dict[str, Any]]:
    """Returns way -> control -> scope -> the difference of mean AUROC, over resamples of groups and of draws.

    `compared`: way -> control -> scope -> the way that stands for the control.
    """
    names, member = np.unique(samples.groups, return_inverse=True)
    weights = cluster_weights(np.arange(len(names)), RESAMPLES)
    often = np.random.default_rng(1).multinomial(len(draws), np.full(len(draws), 1 / len(draws)), size=RESAMPLES)
    # AUROC of each way that is compared: (draws,), and (resamples, draws).
    own: dict[tuple[str, str], list[float]] = {}
    resampled: dict[tuple[str, str], list[Floats]] = {}
    for draw in draws:
        for scope in SCOPES:
            rows = _rows(samples, draw, scope)
            test = draw.test[rows]
            y, weight = samples.y[test], weights[:, member[test]]
            controls = [by_scope[scope] for of in compared.values() for by_scope in of.values() if scope in by_scope]
            ways = dict.fromkeys([*compared, *controls])
            for way in ways:
                own.setdefault((way, scope), []).append(float(auroc(y, draw.scores[way][rows])))
                resampled.setdefault((way, scope), []).append(np.asarray(auroc(y, draw.scores[way][rows], weight)))

    def difference(way: str, other: str, scope: str) -> Any:
        gain = np.array(resampled[way, scope]).T - np.array(resampled[other, scope]).T
        count = np.where(np.isfinite(gain), often, 0)
        mean = (np.nan_to_num(gain) * count).sum(axis=1) / np.maximum(count.sum(axis=1), 1)
        estimate = float(np.nanmean(np.array(own[way, scope]) - np.array(own[other, scope])))
        return packed(resampled_interval(estimate, mean, weights))

    return {
        way: {
            control: {scope: difference(way, other, scope) for scope, other in by_scope.items()}
            for control, by_scope in controls.items()
        }
        for way, controls in compared.items()
    }


def _controls_of(sampling: tuple[int, int], strongest: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """Returns control -> scope -> the way that stands for it."""
    ways = {labels_way(count): labels_way(count) for count in LABELS} | {way: way for way in (BEST_FREE, USUAL_FREE)}
    ways |= {kind: agreement_way(*sampling, kind) for kind in (CHOOSING, ALL_TERMS)}
    return {control: dict.fromkeys(SCOPES, way) for control, way in ways.items()} | strongest


def _calibration(samples: Samples, draws: Sequence[Draw]) -> dict[str, Any]:
    """Returns way -> calibration error freed of noise, Brier skill: means over draws, of answers that ended."""
    found: dict[str, Any] = {}
    ways = [agreement_way(*sampling) for sampling in SAMPLINGS]
    for count in FEW_LABELS:
        ways += [f"{agreement_way(*sampling)}, adapted by {count} labels" for sampling in SAMPLINGS]
        ways += [f"best free number, {count} labels", labels_way(count), labels_way(count, ALL_TERMS)]
    for way in ways:
        errors, skills = [], []
        for draw in draws:
            if way not in draw.probabilities:
                continue
            rows = samples.ended[draw.test]
            test, p = draw.test[rows], draw.probabilities[way][rows]
            weights = cluster_weights(samples.groups[test].tolist(), ECE_RESAMPLES)
            errors.append(debiased_ece(samples.y[test], p, weights).estimate)
            skills.append(float(brier_skill(samples.y[test], p)))
        if errors:
            found[way] = {
                "ece": round(float(np.mean(errors)), 4),
                "brier_skill": round(float(np.mean(skills)), 4),
                "draws": len(errors),
            }
    return found


def _same_again(samples: Samples) -> dict[str, float]:
    """Returns how often the model says the same again, of right and of wrong answers that ended by themselves.

    `wrong_of_four`: share of wrong answers that three more samples all repeat. `wrong_among_four`: share of wrong
    answers among those that three more samples all repeat.
    """
    questions, _, _ = sampled_questions(samples.runs)
    place = {call_id: number for number, call_id in enumerate(samples.call_ids.tolist())}
    right, again, four = [], [], []
    for question in questions:
        classes = classes_of(question)
        for number, call in enumerate(question.calls):
            others = [other for step, other in enumerate(classes) if step != number]
            same = sum(classes[number] != UNREADABLE_CLASS and other == classes[number] for other in others)
            right.append(samples.y[place[call.id]])
            again.append(same / len(others))
            four.append(comb(same, 3) / comb(len(others), 3) if len(others) >= 3 else np.nan)
    y, pair, whole = np.array(right), np.array(again), np.array(four)
    known = np.isfinite(whole)
    return {
        "right": round(float(pair[y == 1].mean()), 4),
        "wrong": round(float(pair[y == 0].mean()), 4),
        "wrong_of_four": round(float(whole[known & (y == 0)].mean()), 4),
        "wrong_among_four": round(float(whole[known & (y == 0)].sum() / whole[known].sum()), 4),
        "auroc": round(float(auroc(y, pair)), 4),
    }


def classes_of(question: SampledQuestion) -> list[int]:
    """Returns the class of each answer, by the item's check."""
    check = question.item.check
    return classes_by(check, [comparable_form(answer, question.item, check)[0] for answer in question.answers])


@main.command()
@click.option("--only", multiple=True, help="Store, by its name in the table.")
@click.option("--draws", default=DRAWS)
@click.option("--work", default=ROOT / "out" / "agreement", type=click.Path(path_type=Path), help="Keeps the draws.")
def measure(only: Sequence[str], draws: int, work: Path) -> None:
    """Draws questions, learns, scores; keeps the figures of each store as they are known."""
    warnings.simplefilter("ignore")
    for name in only or SAMPLED:
        samples = read_samples(ROOT / "recorded" / SAMPLED[name])
        made = [drawn(name, samples, seed, work) for seed in range(draws)]
        keep_figures(KEPT, figures_of(samples, made), "stores", name, sort=False)
        click.echo(name)


@main.command()
def page() -> None:
    """Writes the page, and its tables."""
    stores: dict[str, Any] = read_figures(KEPT)["stores"]
    write(PAGE, "answer", _answer(stores))
    write(PAGE, "rows", _main_table(stores))
    write(PAGE, "goals", _goals(stores))
    write(PAGE, "counts", _counts(stores))
    write(LADDER_PAGE, "few", _few(stores))
    write(PAGE, "scale", _scale(stores))
    write(PAGE, "again", _again(stores))
    write(PAGE, "settings", _settings(stores))
    names = list(stores)
    ways = list(dict.fromkeys(way for one in stores.values() for way in one["ways"]))
    cells = [[way, *(_pair(stores[name]["ways"].get(way)) for name in names)] for way in ways if "partners" not in way]
    write(PAGE, "ways", markdown(["AUROC, all (ended)", *names], cells))
    differences = [
        [f"{way}, over {control}", *(signed(stores[name]["over"][way][control][scope]) for name in names)]
        for way, by in next(iter(stores.values()))["over"].items()
        for control in by
        for scope in SCOPES[:1]
    ]
    write(PAGE, "over", markdown(["difference of AUROC, all answers", *names], differences))
    ended = [
        [f"{way}, over {control}", *(signed(stores[name]["over"][way][control]["ended"]) for name in names)]
        for way, by in next(iter(stores.values()))["over"].items()
        for control in by
    ]
    write(PAGE, "over-ended", markdown(["difference of AUROC, answers that ended", *names], ended))
    calibrated = list(dict.fromkeys(way for one in stores.values() for way in one["calibration"]))
    write(
        PAGE,
        "calibration",
        markdown(
            ["ECE freed of noise (Brier skill; draws)", *names],
            [[way, *(_calibrated(stores[name]["calibration"].get(way)) for name in names)] for way in calibrated],
        ),
    )
    write(
        PAGE,
        "cost",
        markdown(
            [
                "answers",
                "tokens an answer",
                "tokens of 200 answers",
                "labels as good, 100 x 2",
                "labels as good, 50 x 4",
            ],
            [
                [
                    name,
                    f"{one['tokens']:.0f}",
                    f"{200 * one['tokens']:,.0f}",
                    *(_worth(one, agreement_way(*sampling)) for sampling in SAMPLINGS),
                ]
                for name, one in stores.items()
            ],
        ),
    )


def _pair(way: dict[str, Any] | None) -> str:
    return "-" if way is None else f"{way['all']:.3f} ({way['ended']:.3f})"


def _calibrated(found: dict[str, Any] | None) -> str:
    return "-" if found is None else f"{found['ece']:.3f} ({found['brier_skill']:+.2f}; {found['draws']})"


def _worth(one: dict[str, Any], way: str) -> str:
    """Returns how many labels order answers as well as this way does, between the numbers of labels measured."""
    reached = one["ways"][way]["all"]
    labelled = [max(one["ways"][labels_way(count, kind)]["all"] for kind in ("", ALL_TERMS)) for count in LABELS]
    rising = np.maximum.accumulate(labelled)
    if reached < rising[0]:
        return f"fewer than {LABELS[0]}"
    if reached >= rising[-1]:
        return f"{LABELS[-1]} or more"
    return f"{2 ** np.interp(reached, rising, np.log2(LABELS)):.0f}"


def _main_table(stores: dict[str, Any]) -> list[str]:
    """Returns the table of the page: a row a store."""
    first, second = (agreement_way(*sampling) for sampling in SAMPLINGS)
    rows = []
    for name, one in stores.items():
        ways, over, free = one["ways"], one["over"], one["strongest"][STRONGEST_FREE]["all"]
        rows.append(
            [
                name,
                f"{one['right']:.2f}, {one['cut']:.2f}",
                f"{ways[free]['all']:.3f} ({free})",
                f"{ways[first]['all']:.3f}",
                f"{ways[second]['all']:.3f}",
                " / ".join(f"{ways[labels_way(count)]['all']:.3f}" for count in LABELS[1:]),
                signed(over[first][labels_way(50)]["all"]),
                signed(over[first][STRONGEST_FREE]["all"]),
                signed(over[first][STRONGEST_FREE]["ended"]),
            ]
        )
    head = [
        "answers",
        "right, cut",
        "strongest free number",
        "100 x 2",
        "50 x 4",
        "50 / 100 / 200 labels",
        "100 x 2 over 50 labels",
        "over the free number",
        "the same, ended",
    ]
    draws = [one["draws"] for one in stores.values()]
    told = str(min(draws)) if min(draws) == max(draws) else f"{min(draws)} to {max(draws)}"
    refused = [
        f"{name} {one['draws'] - learned}"
        for name, one in stores.items()
        if (learned := one["calibration"].get(first, {"draws": 0})["draws"]) < one["draws"]
    ]
    lost = f" The product refuses to learn from 100 x 2 in some: {'; '.join(refused)}." if refused else ""
    return [f"{told} draws a store.{lost}", "", *markdown(head, rows)]


def _few(stores: dict[str, Any]) -> list[str]:
    """Returns what few labels give, as they are learned from and as they would choose among the steps."""
    rows = []
    for count in LABELS:
        way, choosing = labels_way(count), labels_way(count, CHOOSING)
        cells: list[str] = [str(count)]
        for size in ("0.5B", "1.5B"):
            of_size = {name: one for name, one in stores.items() if name.startswith(size)}
            cells.append(" / ".join(f"{mean:.3f}" for mean in mean_aurocs(of_size, way, choosing, USUAL_FREE)))
        for control in (choosing, USUAL_FREE):
            more, fewer, worst = _counted(stores.values(), way, control)
            cells.append(f"{more}, {fewer}, {worst:+.3f}")
        rows.append(cells)
    head = [
        "labels",
        f"0.5B: drawn / chosen / `{USUAL_FREE}`",
        "1.5B",
        "over choosing: ahead, behind, worst",
        f"over `{USUAL_FREE}`",
    ]
    return markdown(head, rows)


def _of_size(stores: dict[str, Any], size: str) -> list[Any]:
    return [one for name, one in stores.items() if name.startswith(size)]


def _counted(found: Iterable[Any], way: str, control: str, scope: str = "all") -> tuple[int, int, float]:
    """Returns on how many stores the way is ahead by its interval, on how many behind, and the least difference."""
    ends = [one["over"][way][control][scope] for one in found]
    return ahead(ends), behind(ends), min(each[0] for each in ends)


def mean_aurocs(stores: dict[str, Any], *ways: str) -> tuple[float, ...]:
    """Returns the mean AUROC over all stores of each way, of all answers, cut ones last."""
    return tuple(float(np.mean([one["ways"][way]["all"] for one in stores.values()])) for way in ways)


def _answer(stores: dict[str, Any]) -> list[str]:
    """Returns the page's answer in four sentences."""
    first, found = agreement_way(*SAMPLINGS[0]), list(stores.values())
    labels, usual, chosen, strongest = (
        _counted(found, first, control) for control in (labels_way(50), USUAL_FREE, BEST_FREE, STRONGEST_FREE)
    )
    mean, usual_mean = mean_aurocs(stores, first, USUAL_FREE)
    larger = _counted(_of_size(stores, "1.5B"), first, labels_way(50))
    refused = [str(count) for one in found if (count := one["ways"][first].get("reached", {}).get(REFUSED, 0))]
    sure = stores_calibrated(stores, 25)
    return [
        f"In part: learned from 100 questions that are asked twice, without a label, the score of a single answer "
        f"is behind 50 labels, by an interval, on {labels[1]} of {len(found)} stores of samples and ahead on "
        f"{labels[0]}, at worst {labels[2]:+.3f} AUROC; on the {len(_of_size(stores, '1.5B'))} stores of the 1.5B "
        f"coder, on which nothing was chosen, behind on {larger[1]} and ahead on {larger[0]}.",
        f"Its mean is {mean:.3f}, that of the fixed free number `{USUAL_FREE}`, which asks nothing, {usual_mean:.3f}: "
        f"ahead on {usual[0]}, behind on {usual[1]}, at worst {usual[2]:+.3f} (in {', '.join(refused)} of {DRAWS} "
        f"draws of {len(refused)} stores too little agrees to learn, and the score is `{USUAL_FREE}`).",
        f"It is ahead of the free number that 50 labels would choose on {chosen[0]} and behind on {chosen[1]}, at "
        f"worst {chosen[2]:+.3f}; ahead of the free number that is strongest in hindsight on {strongest[0]}, behind on "
        f"{strongest[1]}, at worst {strongest[2]:+.3f}.",
        f"It says how probable it is that the model says the same again, which is no probability of being right: by 25 "
        f"labels that becomes one with an ECE of at most {SMALL_ECE} on {sure} of {len(found)}, counted where "
        f"{MOST_DRAWS} of {DRAWS} draws learn one (the goal was {GOAL_STORES}).",
    ]


SMALL_ECE = 0.08
"""Calibration error that the goal allows."""
GOAL_STORES = 8
"""Number of stores on which the goals about 50 labels and about the calibration error are to hold."""
MOST_DRAWS = 18
"""Fewest of the `DRAWS` draws with a probability for which the mean calibration error of a store counts. The other
draws learned nothing, and a mean without them would hide it."""


def stores_calibrated(stores: dict[str, Any], count: int) -> int:
    """Returns on how many stores agreement that `count` labels adapt has a small calibration error."""
    way = f"{agreement_way(*SAMPLINGS[0])}, adapted by {count} labels"
    return sum(error <= SMALL_ECE for error in _errors(stores, way))


def _errors(stores: dict[str, Any], way: str) -> list[float]:
    """Returns the mean calibration error of each store on which `MOST_DRAWS` draws give a probability."""
    found = [one["calibration"].get(way) for one in stores.values()]
    return [each["ece"] for each in found if each is not None and each["draws"] >= MOST_DRAWS]


def _goals(stores: dict[str, Any]) -> list[str]:
    """Returns whether each goal was met."""
    found = list(stores.values())
    first = agreement_way(*SAMPLINGS[0])
    not_behind = len(found) - _counted(found, first, labels_way(50))[1]
    over_free, _, least = _counted(found, first, STRONGEST_FREE)
    over_chosen = _counted(found, first, BEST_FREE)[0]
    sure = stores_calibrated(stores, 25)
    gsm = stores[GSM]["ways"]
    free = gsm[stores[GSM]["strongest"][STRONGEST_FREE]["all"]]["all"]
    return [
        f"- Not behind 50 labels, by an interval, on {GOAL_STORES} of {len(found)}: "
        f"{_met(not_behind >= GOAL_STORES)}, {not_behind}.",
        f"- Ahead of the best free number on 6: {_met(over_free >= 6)}, {over_free} in hindsight, {over_chosen} of the "
        "number that 50 labels choose.",
        f"- Never more than 0.01 behind it: {_met(least >= -0.01)}, {least:+.3f}.",
        f"- An ECE of at most {SMALL_ECE} by 25 labels on {GOAL_STORES}: {_met(sure >= GOAL_STORES)}, {sure}.",
        f"- At least 0.83 on GSM8K of the 1.5B coder: {_met(gsm[first]['all'] >= 0.83)}, {gsm[first]['all']:.3f}; the "
        f"strongest free number has {free:.3f}, being cut alone {gsm[CUT]['all']:.3f}.",
    ]


def _counts(stores: dict[str, Any]) -> list[str]:
    """Returns on how many stores each sampling is ahead of each control and behind it."""
    parts = (list(stores.values()), _of_size(stores, "0.5B"), _of_size(stores, "1.5B"))
    lines = ["Stores ahead/behind by an interval, and the worst difference; all, 0.5B, 1.5B:", ""]
    for questions, count in SAMPLINGS:
        way = agreement_way(questions, count)
        for scope in SCOPES if (questions, count) == SAMPLINGS[0] else SCOPES[:1]:
            told = []
            for control in (labels_way(50), STRONGEST_LABELS, USUAL_FREE, BEST_FREE, STRONGEST_FREE):
                counted = [_counted(some, way, control, scope) for some in parts]
                told.append(f"{control} {', '.join(f'{more}/{fewer}/{worst:+.3f}' for more, fewer, worst in counted)}")
            lines.append(f"- {questions} x {count}, {scope}: over {'; over '.join(told)}.")
    return lines


GSM = "1.5B coder, GSM8K"


def _met(met: bool) -> str:
    return "met" if met else "missed"


def _scale(stores: dict[str, Any]) -> list[str]:
    """Returns what labels make of agreement as a probability."""
    first = agreement_way(*SAMPLINGS[0])

    def range_of(way: str) -> str:
        values = _errors(stores, way)
        return (
            f"{min(values):.3f} to {max(values):.3f}, at most {SMALL_ECE} on {sum(v <= SMALL_ECE for v in values)} of "
            f"{len(values)}"
        )

    lines = [f"Agreement that is taken for P(right) has an ECE, freed of noise, of {range_of(first)}."]
    lines += [
        f"By a scale and {count} labels: {range_of(f'{first}, adapted by {count} labels')}; the free number that these "
        f"choose, by Platt's map: {range_of(f'best free number, {count} labels')}; labels alone: "
        f"{range_of(labels_way(count))}."
        for count in FEW_LABELS
    ]
    return lines


def _again(stores: dict[str, Any]) -> list[str]:
    """Returns how often wrong answers are repeated."""
    found = [one["same_again"] for one in stores.values()]

    def range_of(key: str) -> str:
        return f"{min(one[key] for one in found):.2f} to {max(one[key] for one in found):.2f}"

    return [
        f"A second sample repeats a right answer with a probability of {range_of('right')}, a wrong one with "
        f"{range_of('wrong')}.",
        f"Three more samples all repeat {range_of('wrong_of_four')} of the wrong answers; of the answers that three "
        f"more samples repeat, {range_of('wrong_among_four')} are wrong.",
    ]


def _settings(stores: dict[str, Any]) -> list[str]:
    """Returns what other recipes give, apart by the size of the model."""
    lines = []
    for sampling in SAMPLINGS:
        told = []
        for size in ("0.5B", "1.5B"):
            some = _of_size(stores, size)
            means = [
                np.mean([one["ways"][agreement_way(*sampling, kind)]["all"] for one in some])
                for kind in ("", CHOOSING, ALL_TERMS, NONE_KEPT)
            ]
            told.append(f"{size}: " + " / ".join(f"{mean:.3f}" for mean in means))
        lines.append(
            f"{sampling[0]} x {sampling[1]}, as shipped / steps chosen / always all terms / {NONE_KEPT}, mean AUROC: "
            f"{'; '.join(told)}."
        )
    some = _of_size(stores, "0.5B")
    partners = [
        np.mean([one["ways"][agreement_way(*MANY, f"{number} partners")]["all"] for one in some]) for number in PARTNERS
    ]
    lines.append(
        f"{MANY[0]} x {MANY[1]} with {', '.join(map(str, PARTNERS))} partners an answer (0.5B): "
        f"{', '.join(f'{mean:.3f}' for mean in partners)}."
    )
    way = agreement_way(*SAMPLINGS[0], f"{SHUFFLED}, {ALL_TERMS}")
    mixed = [one["ways"][way]["ended"] for one in stores.values()]
    lines.append(
        f"With the agreement of other questions all terms have {np.mean(mixed):.3f} on answers that ended "
        f"({min(mixed):.3f} to {max(mixed):.3f})."
    )
    return lines


if __name__ == "__main__":
    main()
