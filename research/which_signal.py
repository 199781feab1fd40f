"""Writes the tables of docs/choose.md and README.md, and a sentence of docs/streams.md, from docs/measured.

python -m research.which_signal
"""

import re
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

import click
import numpy as np

from metaprobe.probes.quality import QualityPredictor
from metaprobe.quickstart import LABEL_COUNT, RECORDED, TARGET, adapt_to_labels, predict_log_odds
from metaprobe.records.importer import read_openai_lines
from metaprobe.training.advise import MIN_OUTCOME_GROUPS, SIGNAL_TITLES, TRAINING_PAYS
from metaprobe.training.panel.fitted_panel import MIN_PANEL_GROUPS
from metaprobe.training.rescale import MIN_RESCALE_LABELS
from research.agreement.measure import SAMPLINGS, USUAL_FREE, agreement_way, labels_way
from research.blocks import ROOT, ahead, behind, markdown, shown, write
from research.hidden import headline
from research.panel.measure import KEPT_BY_IT, SHOWN, STOPPED, over_simple, over_strongest
from research.pictures import read
from research.production.gate import looks_told
from research.routing.measure import over_fixed

PAGE = ROOT / "docs" / "choose.md"
README, GUIDE = ROOT / "README.md", ROOT / "docs" / "streams.md"
UNKNOWN = "not measured"
SAME_ORDER = 1e-4
"""Largest difference of two sums over the root of the length that counts as rounding, in nats."""
DRAWS = 200
"""Draws of the labels from the recorded answers, for the figures that README begins with."""
HEAD = ["you have", "use", "added latency", "price", "labels needed", "what it was worth here"]
STATED, RAW, BLEND = "stated confidence", "judge's own expectation", "blend"


def pairs_measured() -> list[dict[str, Any]]:
    """Returns the figures of each pair of a model and a task."""
    return [row for row in headline.read().values() if "methods" in row]


def aurocs(method: str) -> list[float]:
    """Returns the AUROC of a method on each pair of a model and a task of docs/research/probes.md that has it."""
    return [pair["methods"][method]["auroc"][0] for pair in pairs_measured() if method in pair["methods"]]


def worth(method: str) -> str:
    """Returns the median AUROC over the pairs, its range, and the median difference from stated confidence."""
    held, pairs = aurocs(method), [p["methods"] for p in pairs_measured() if method in p["methods"]]
    over = [one[method]["auroc"][0] - one[STATED]["auroc"][0] for one in pairs if STATED in one]
    beside = "" if method == STATED else f", {median(over):+.2f} from {STATED}"
    return f"AUROC {median(held):.2f} ({min(held):.2f} to {max(held):.2f} on {len(held)} pairs){beside}"


def training_pays() -> int:
    """Returns the least number of labels from which on training was not behind adapting, by the interval."""
    gains = over_adapted()
    return min(count for count in gains if all(gain[2] >= 0 for more, gain in gains.items() if more >= count))


def over_adapted() -> dict[int, list[float]]:
    """Returns number of labels -> how far training was ahead of adapting, with its interval."""
    counts = read("travel")["curve"]["counts"]
    return {int(count): row["trained"]["over_adapted"] for count, row in counts.items() if int(count)}


def log_probabilities() -> list[str]:
    verdict = read("predict")["rows"][0]
    behind = {count: gain for count, gain in over_adapted().items() if count < training_pays()}
    fewer = ", ".join(f"{shown(gain, '+.2f')} with {count}" for count, gain in sorted(behind.items()))
    return [
        "the quality predictor ([score](score.md), [train](train.md))",
        f"{verdict['ours_us']:.0f} µs ({verdict['what']})",
        "nothing: they come with the answer",
        f"{MIN_RESCALE_LABELS} to adapt the bundled one, {training_pays()} to train one (AUROC of training less "
        f"adapting {fewer})",
        f"trees on log-probabilities: {worth('LightGBM on logprobs')}; mean log-probability, without labels: "
        f"{worth('mean log-probability')}",
    ]


def stated() -> list[str]:
    return [
        "ask for it ([compare](compare.md) calibrates it beside the others)",
        UNKNOWN,
        "the tokens that state it",
        "none as stated",
        f"{worth(STATED)}; P(true): {worth('P(true)')}",
    ]


def samples() -> list[str]:
    stores = list(read("panel")["samples"].values())
    size = SHOWN[-1]
    rows = [one["sizes"][size] for one in stores]
    one, kept = [one["accuracy_of_one"] for one in stores], [row["accuracy"][KEPT_BY_IT] for row in rows]
    gains = {
        "majority": [100 * row["kept_over"]["majority"][0] for row in rows],
        "strongest simple way": [100 * over_strongest(row)[1][0] for row in rows],
    }
    over = ", ".join(f"{median(g):+.1f} over the {way} ({min(g):+.1f} to {max(g):+.1f})" for way, g in gains.items())
    return [
        "a panel ([several answers](several-answers.md))",
        "one more answer each, asked together or in turn",
        "one more answer each",
        f"{min(store['questions'] for store in stores)} questions here; fewer {UNKNOWN}",
        f"{len(stores)} stores: {median(one):.0%} right with one answer, {median(kept):.0%} with the one kept of "
        f"{size} (median); points, {over}",
    ]


def weights() -> list[str]:
    captured = read("capture")["4 layers"]
    pairs = [pair["n"] for pair in pairs_measured()]
    return [
        "a probe of hidden states ([probes](probes.md))",
        f"{captured['time']:.2f} times the generation [{captured['from']:.2f}, {captured['to']:.2f}], 4 layers kept",
        "memory for the states",
        f"{min(pairs):,} to {max(pairs):,} here; fewer {UNKNOWN}",
        f"after the answer: {worth('hidden probe, answer')}; before it: {worth('hidden probe, before')}; joined with "
        f"log-probabilities: {worth('blend')}",
    ]


def of_texts() -> tuple[list[float], list[list[float]], str]:
    """Returns the AUROC of words on each set of labelled texts, what a small model's states gain over the stronger
    words, and on how many sets they do."""
    sets = read("text_reader").values()
    words = [one["auroc"]["words"][0] for one in sets if "words" in one.get("auroc", {})]
    gains = [one["ladder"]["over_stronger"] for one in sets if "ladder" in one]
    lost = f", behind on {behind(gains)}" if behind(gains) else ""
    return words, gains, f"{ahead(gains)} of {len(gains)}{lost}"


def text() -> list[str]:
    eyes = read("other_eyes").values()
    adapter = [one["auroc"]["adapter, answer"][0] for one in read("adapter").values()]
    rows = [one["learned_from"] for one in read("adapter").values()]
    speeds = [one["tokens_per_s"] for one in eyes]
    words, states, won = of_texts()
    return [
        "its words, and a small model's states ([a text reader](text.md)), or the small model's log-probabilities "
        "([read again](probes.md#read-recorded-calls-again)), or an adapter",
        f"words: {read('text_reader')['speed']['p50_ms']:.2f} ms; the small model reads {min(speeds):,.0f} to "
        f"{max(speeds):,.0f} tokens/s",
        "a small model of your own",
        f"none for its log-probabilities; {min(rows):,} to {max(rows):,} for the adapter here",
        f"its log-probabilities: AUROC {median(one['read'] for one in eyes):.2f}, "
        f"{median(one['gap'][0] for one in eyes):+.2f} from the answering model's own ({len(eyes)} cases); adapter: "
        f"AUROC {median(adapter):.2f} ({min(adapter):.2f} to {max(adapter):.2f} on {len(adapter)} pairs); words: AUROC "
        f"{median(words):.2f} ({min(words):.2f} to {max(words):.2f} on {len(words)} sets of labelled texts), with a "
        f"small model's states {median(gain[0] for gain in states):+.2f}, ahead on {won}",
    ]


def decisions() -> list[str]:
    real = read("rubric")["real"]
    error = real["text"]["rmse"]
    named = ("judge's own expectation", "calibrated judge", "constant", "rater's mean alone")
    errors = ", ".join(f"{name} {error[name][0]:.2f}" for name in named)
    return [
        "its probabilities, calibrated on your labels ([decisions](text.md#ask-a-judge))",
        UNKNOWN,
        UNKNOWN,
        f"{real['ratings']} here; fewer {UNKNOWN}",
        f"ratings of real talks by people, root mean square error: {errors}",
    ]


ROWS: dict[str, Callable[[], list[str]]] = {
    "log-probabilities": log_probabilities,
    "stated": stated,
    "samples": samples,
    "weights": weights,
    "text": text,
    "decisions": decisions,
}


def looks_ahead() -> str:
    """Returns at how many of the measured looks gates were shown to be better than the mean log-probability."""
    looks = [one for task in read("gate").values() for one in task["report"]["looks"]]
    return f"{sum(one['gain']['low'] > 0 for one in looks)} of {len(looks)}"


def looks_by_form() -> int:
    """Returns at how many of the looks of `looks_ahead` the gate reads the form of the question."""
    return sum(map(len, looks_told(read("gate"))[0].values()))


SHORT = ["you have: do", "gain", "cost", "limits"]
_SIZE = re.compile(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)([mb])(?![a-z0-9])", re.I)


def sizes(names: Iterable[str]) -> str:
    """Returns the smallest and the largest size that the names of models state: `0.5B-1.5B`, or `135M`."""
    found = {
        float(n) * (1e9 if unit in "bB" else 1e6): f"{n}{unit.upper()}" for n, unit in _SIZE.findall(" ".join(names))
    }
    ends = [found[size] for size in sorted(found)]
    return ends[0] if len(ends) == 1 else f"{ends[0]}-{ends[-1]}"


def gain(draws: dict[str, Any]) -> list[str]:
    """Returns the lines that README begins with: what a flag gains, in the mean over draws of its labels.

    `draws`: figures of `label_draws`.
    """
    found, cost = (f"{mean:.0%} [{100 * low:.0f}, {100 * high:.0f}]" for mean, low, high in draws["adapted"])
    usual_found, usual_cost = (f"{mean:.0%}" for mean, _, _ in draws["mean"])
    return [
        f"**With {draws['labels']} labels it finds {found} of the mistakes of a {sizes([draws['model']])} model, "
        f"flagging {cost} of the right answers** (mean, and 95% of {draws['draws']} draws; at random: "
        f"{draws['flagged']:.0%} of each). Of kept answers {draws['right_among_kept']:.0%} are right, of all "
        f"{draws['right']:.0%}. The order is a free number, `{USUAL_FREE}` (sum over root of length); labels set "
        f"threshold and P(right). The mean log-probability finds {usual_found}, costs {usual_cost}. Quickstart prints "
        f"one draw:",
        "",
    ]


def label_draws(draws: int = DRAWS) -> dict[str, Any]:
    """Returns what flags by fifty of the recorded labels find and cost on the other answers.

    `adapted` and `mean` hold (mean, 2.5 %, 97.5 %) of the share of wrong answers that are flagged, and of the right
    ones: by the adapted predictor and by the mean log-probability. The latter is cut where as many of the labelled
    answers lie below as are wrong among them. Draws whose labels give no threshold are left out. Raises
    `ClickException` where the adapted predictor orders the answers of a draw otherwise than `scaled`, the sum over the
    root of the length.
    """
    predictor, runs = QualityPredictor.load(), list(read_openai_lines(RECORDED))
    calls = [run.calls[0] for run in runs]
    series = [np.asarray(call.logprobs, dtype=np.float32) for call in calls]
    y = np.array([run.label(TARGET, call.id) for run, call in zip(runs, calls, strict=True)], dtype=np.int64)
    before = predict_log_odds(predictor, series)
    mean = np.array([logprobs.mean() for logprobs in series])
    scaled = np.array([logprobs.sum() / np.sqrt(len(logprobs)) for logprobs in series])
    rng, kept, flagged_shares = np.random.default_rng(0), [], []
    shares: dict[str, list[list[float]]] = {"adapted": [], "mean": []}
    for _ in range(draws):
        labelled = rng.choice(len(y), LABEL_COUNT, replace=False)
        others = np.setdiff1d(np.arange(len(y)), labelled)
        _, scores, threshold = adapt_to_labels(predictor, before, y, labelled)
        if threshold is None:
            continue
        is_flagged = scores[others] < threshold
        if scaled[others][is_flagged].max(initial=-np.inf) > scaled[others][~is_flagged].min() + SAME_ORDER:
            raise click.ClickException(f"the adapted predictor flags other answers than the least {USUAL_FREE}")
        flags = {"adapted": is_flagged, "mean": mean[others] < np.quantile(mean[labelled], 1 - y[labelled].mean())}
        for name, flagged in flags.items():
            shares[name].append([flagged[y[others] == right].mean() for right in (0, 1)])
        flagged_shares.append(is_flagged.mean())
        kept.append(y[others][~is_flagged].mean())
    return {
        "model": calls[0].model,
        "labels": LABEL_COUNT,
        "draws": len(kept),
        "right": float(y.mean()),
        "right_among_kept": float(np.mean(kept)),
        "flagged": float(np.mean(flagged_shares)),
        **{
            name: [(column.mean(), *np.quantile(column, (0.025, 0.975))) for column in np.array(drawn).T]
            for name, drawn in shares.items()
        },
    }


def in_short() -> list[list[str]]:
    """Returns the rows of README: for each reader what to do, its gain and cost, and where a simple way will do."""
    panel = read("panel")["samples"]
    better = ahead(over_strongest(one["sizes"][SHOWN[-1]])[1] for one in panel.values())
    stops = [over_simple(one["budgets"][budget]) for one in panel.values() for budget in STOPPED]
    sooner = sum(all(low > 0 for _, low, _ in gains) for gains in stops)
    later = sum(any(high < 0 for _, _, high in gains) for gains in stops)
    asked = [row["word"] for one in read("routing").values() for row in one["rows"]]
    fixed = list(over_fixed(read("routing")).values())
    few = read("no_labels")["stores"]
    way = agreement_way(*SAMPLINGS[0])
    as_labels = [one["over"][way][labels_way(50)]["all"] for one in few.values()]
    taught, labelled, free = (
        np.mean([one["ways"][name]["all"] for one in few.values()]) for name in (way, labels_way(50), USUAL_FREE)
    )
    return [
        [
            "a log with log-probabilities: [adapt](docs/adapt.md)",
            "P(right), a flag",
            "20-50 labels",
            f"keeps the order of `{USUAL_FREE}`; [train](docs/train.md) from {TRAINING_PAYS} labels on",
        ],
        [
            "a service: [proxy](docs/serve.md), [watch](docs/watch.md)",
            "both, live; alarms on drift",
            "another `base_url`",
            "plain refusals get scores",
        ],
        [
            "no labels: ask a hundred of your questions twice ([teach](docs/no-labels.md))",
            f"a flag; AUROC {taught:.3f}, by 50 labels {labelled:.3f}, `{USUAL_FREE}` {free:.3f}",
            f"{SAMPLINGS[0][0] * SAMPLINGS[0][1]} answers",
            f"against 50 labels: +{ahead(as_labels)} -{behind(as_labels)} of {len(few)} "
            f"[sets](docs/research/no-labels.md) ({sizes(few)})",
        ],
        [
            "several models or samples: [router, panel](docs/route.md)",
            f"agents, against fixed ways: +{fixed.count('ahead')} -{fixed.count('behind')} of {len(fixed)} "
            f"[pairs](docs/research/routing.md); samples: +{sooner} -{later} of {len(stops)} "
            f"[cases](docs/research/panel.md)",
            f"{MIN_PANEL_GROUPS}-{MIN_OUTCOME_GROUPS['router']} labelled questions",
            f"against the best way, agents: +{asked.count('ahead')} -{asked.count('behind')} of {len(asked)} budgets; "
            f"samples: +{better} of {len(panel)} sets",
        ],
        [
            "research: [compare](docs/compare.md) stated confidence with implicit signals",
            "a report with intervals",
            "labels",
            f"stated: median AUROC {median(aurocs(STATED)):.2f} ({sizes(headline.read())})",
        ],
    ]


@click.command()
def main() -> None:
    """Writes the tables."""
    rows = [[SIGNAL_TITLES[name], *ROWS[name]()] for name in SIGNAL_TITLES]
    write(PAGE, "which-signal", [*markdown(HEAD, rows), ""])
    looks = [
        f"{len(read('gate'))} gates on recorded answers beat the mean log-probability of the same tokens at",
        f"{looks_ahead()} looks, {looks_by_form()} by the question's form: [what the gate saves](research/gate.md).",
        "",
    ]
    write(GUIDE, "looks", looks)
    write(README, "situations", [*markdown(SHORT, in_short()), ""])
    write(README, "gain", gain(label_draws()))


if __name__ == "__main__":
    main()
