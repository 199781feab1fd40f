"""Whether the interval of P(success) holds the truth: planted truths on real questions.

python -m research.before.intervals measure DATA [WORLD ...]    # docs/measured/before_intervals.json, then the page
python -m research.before.intervals page

A world gives every question and candidate a probability, from which labels are drawn. `metaprobe train success` learns
from some of them, and estimates questions that have no label. In worlds of states, made-up states stand for those of a
reader, and the fitted step is asked itself.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from metaprobe.records.extras import require
from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes
from metaprobe.routing.success_estimator import NORMAL_95, SuccessEstimator, log_odds, probability
from metaprobe.training.recipes.train_success import train_success
from metaprobe.training.success_fit import fit_success, success_data
from metaprobe.training.success_options import SuccessOptions
from metaprobe.training.success_posterior import posterior_columns
from metaprobe.training.surface_fit import read_surfaces, surface_span
from research.before.measure import LABELS, PAGE
from research.before.tasks import outcomes as task_outcomes
from research.blocks import DOCS, keep_figures, markdown, read_figures, write
from research.routing.data import SETS

KEPT = DOCS / "measured" / "before_intervals.json"
POOLS = ("MMLU-Pro", "router_llmrouter9", "router_cascade9")
"""Where the questions and their dimensions come from, by turns."""
CANDIDATES = (3, 5, 8)
"""Numbers of candidates, by turns."""
POOL, TESTED = 2_500, 400
"""Questions of a pool, and those without a label that are estimated."""
SEEDS = (20, 21, 22)
"""Not those on which `EFFECTS` and `OUTSIDE` of training/success_posterior.py were chosen, which were 0, 1 and 2."""
RATES = (0.35, 0.85)
"""Lowest and highest of the candidates' rates, at the log-odds of a usual question."""
SHARED = 0.5
"""Part of the variance of effects that all candidates share."""
OTHER_GOAL = 0.85
"""Goal for the coverage in each world that the model cannot express."""
STATE_SIZE = 60
"""Number of components of words that made-up states hold."""
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """Real questions, and what a world's truth may follow."""

    questions: tuple[str, ...]
    dimensions: tuple[str, ...]
    dimension: NDArray[np.int64]
    places: Floats
    """Places (n, k) along the principal directions of the surface of all questions."""
    words: Any
    """TF-IDF (n, W) of all words, as scipy CSR."""
    form: Floats
    """ln(characters), and whether there is a number, (n, 2)."""
    states: Floats
    """Made-up states (n, 121): 60 components of all words, 60 bent mixtures of these, and ln(characters)."""


def read_pool(name: str, data: Path) -> Pool:
    """Returns at most `POOL` questions, drawn with seed 0."""
    every = task_outcomes(name, data) if name == "MMLU-Pro" else SETS[name].load(data)
    every = [question for question in every if question.question.strip()]
    drawn = [every[row] for row in np.random.default_rng(0).permutation(len(every))[:POOL].tolist()]
    questions = tuple(question.question for question in drawn)
    rows = read_surfaces(questions)
    text = require("sklearn.feature_extraction.text", "fit")
    words = text.TfidfVectorizer(min_df=3).fit_transform(questions)
    names, dimension = np.unique([question.dimension for question in drawn], return_inverse=True)
    decomposition = require("sklearn.decomposition", "fit")
    components = unit(decomposition.TruncatedSVD(STATE_SIZE, random_state=0).fit_transform(words))
    bent = 2 * np.tanh(components @ np.random.default_rng(0).normal(size=(STATE_SIZE, STATE_SIZE)) / 4)
    return Pool(
        questions,
        tuple(names.tolist()),
        dimension,
        surface_span(rows, form_scale=0.2, seed=0).project(rows),
        words,
        np.column_stack([np.log1p(rows.form[:, 0]), rows.form[:, 3] > 0]),
        np.column_stack([components, bent, np.log1p(rows.form[:, 0])]),
    )


def unit(values: Floats) -> Floats:
    """Returns columns of mean 0 and standard deviation 1."""
    centred = values - values.mean(axis=0)
    return np.asarray(centred / np.maximum(centred.std(axis=0), 1e-9))


def mixed(values: Floats) -> Floats:
    """Returns effects (n, A) of A candidates from (n, A + 1) effects, of which all share the first."""
    return unit(np.sqrt(SHARED) * unit(values[:, :1]) + np.sqrt(1 - SHARED) * unit(values[:, 1:]))


def along(pool: Pool, count: int, rng: np.random.Generator) -> Floats:
    """Returns effects (n, A) that are linear in the places."""
    return mixed(pool.places @ rng.normal(size=(pool.places.shape[1], count + 1)))


def by_dimension(pool: Pool, count: int, rng: np.random.Generator) -> Floats:
    """Returns effects (n, A) of the dimension."""
    return mixed(rng.normal(size=(len(pool.dimensions), count + 1))[pool.dimension])


def of_words(pool: Pool, count: int, rng: np.random.Generator, drawn: int | None = None) -> Floats:
    """Returns effects (n, A) of all words by TF-IDF, or of whether each of some frequent words occurs."""
    words = pool.words
    if drawn is not None:
        share = np.asarray((words > 0).mean(axis=0)).ravel()
        frequent = np.flatnonzero((share > 0.03) & (share < 0.4))
        words = (words[:, rng.permutation(frequent)[:drawn]] > 0).astype(np.float64)
    return mixed(np.asarray(words @ rng.normal(size=(words.shape[1], count + 1))))


def steps(pool: Pool, count: int, rng: np.random.Generator) -> Floats:
    """Returns effects (n, A) of the signs of linear functions, and of products of the signs."""
    first, second = np.sign(along(pool, count, rng)), np.sign(along(pool, count, rng))
    return unit(first + second * first[:, :1])


def products(pool: Pool, count: int, rng: np.random.Generator) -> Floats:
    """Returns effects (n, A) of products of two linear functions, and of one of them."""
    first, second = along(pool, count, rng), along(pool, count, rng)
    return unit(first * second + first / 2)


def of_length(pool: Pool, count: int, rng: np.random.Generator) -> Floats:
    """Returns effects (n, A) of the squared length and of numbers in the text."""
    return unit(-np.square(unit(pool.form[:, :1])) + pool.form[:, 1:] * (1 + rng.normal(size=(1, count))))


def two_types(kind: NDArray[np.bool_], count: int, rng: np.random.Generator) -> Floats:
    """Returns effects (n, A) of two kinds of questions; the first is easier for most candidates."""
    effect = rng.normal(size=(2, count)) + np.array([[0.8], [0.0]])
    made = np.where(kind[:, None], effect[:1], effect[1:])
    return np.asarray(made - made.mean(axis=0))


def types_read(pool: Pool, count: int, rng: np.random.Generator) -> Floats:
    return two_types(along(pool, count, rng)[:, 0] > 0.3, count, rng)


def one_strong(pool: Pool, count: int, rng: np.random.Generator) -> Floats:
    return along(pool, count, rng) * np.r_[1.5, np.zeros(count - 1)]


Effects = Callable[[Pool, int, np.random.Generator], Floats]
EXPRESSIBLE: dict[str, Effects] = {
    "rates alone": lambda pool, count, rng: np.zeros((len(pool.questions), count)),
    "dimensions": lambda pool, count, rng: 0.8 * by_dimension(pool, count, rng),
    "linear, weak": lambda pool, count, rng: 0.4 * along(pool, count, rng),
    "linear": lambda pool, count, rng: 0.8 * along(pool, count, rng),
    "linear, strong": lambda pool, count, rng: 1.5 * along(pool, count, rng),
    "linear, for one candidate": one_strong,
    "dimensions and linear": lambda pool, count, rng: (
        0.6 * by_dimension(pool, count, rng) + 0.6 * along(pool, count, rng)
    ),
}
"""Effects on the log-odds that the model can express."""
OTHERS: dict[str, Effects] = {
    "40 words": lambda pool, count, rng: 0.8 * of_words(pool, count, rng, 40),
    "every word": lambda pool, count, rng: 0.8 * of_words(pool, count, rng),
    "products": lambda pool, count, rng: 0.8 * products(pool, count, rng),
    "length": lambda pool, count, rng: 0.8 * of_length(pool, count, rng),
    "two types that the text shows": types_read,
    "steps": lambda pool, count, rng: 0.8 * steps(pool, count, rng),
    "two types that nothing shows": lambda pool, count, rng: two_types(
        rng.random(len(pool.questions)) < 0.4, count, rng
    ),
}
"""Effects that the model cannot express."""
STATE_WORLDS: dict[str, float] = {"states": 0.8, "states, strong": 1.5}
"""Standard deviations of effects that are linear in the states."""
WORLDS = (*EXPRESSIBLE, *OTHERS, *STATE_WORLDS)


@click.group()
def main() -> None:
    """Measure the coverage of the interval, and write the page."""


@main.command("measure")
@click.argument("data", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("names", nargs=-1, type=click.Choice(WORLDS))
def measure_command(data: Path, names: tuple[str, ...]) -> None:
    """Measure all worlds, or those named, and keep their figures beside those of the others."""
    pools = [read_pool(name, data) for name in POOLS]
    for name in names or WORLDS:
        for labels in LABELS:
            runs = [
                {"pool": POOLS[seed % len(POOLS)]}
                | measured(name, pools[seed % len(pools)], CANDIDATES[seed % len(CANDIDATES)], labels, seed)
                for seed in SEEDS
            ]
            keep_figures(KEPT, runs, "worlds", f"{name}, {labels} labels", sort=False)
            print(name, labels, [[run[key] for key in ("step", "held", "width", "rmse")] for run in runs], flush=True)
    page()


@main.command("page")
def page_command() -> None:
    """Write the blocks from the kept figures."""
    page()


def measured(name: str, pool: Pool, count: int, labels: int, seed: int) -> dict[str, Any]:
    """Returns how often the interval holds the planted probability of a world, and how wide it is."""
    rng = np.random.default_rng([seed, labels])
    base = log_odds(rng.permutation(np.linspace(*RATES, count)))
    if name in STATE_WORLDS:
        states = unit(pool.states)
        by_state = mixed(states @ rng.normal(size=(states.shape[1], count + 1)))
        truth = probability(base + STATE_WORLDS[name] * by_state)
    else:
        truth = probability(base + (EXPRESSIBLE | OTHERS)[name](pool, count, rng))
    right = rng.random(truth.shape) < truth
    order = rng.permutation(len(truth))
    learned, tested = order[:labels], order[labels : labels + TESTED]
    ask = by_reading if name in STATE_WORLDS else by_estimator
    step, p, low, high = ask(pool, right, learned, tested, seed)
    known = np.isfinite(p)
    planted, low, high = truth[tested][known], low[known], high[known]
    return {
        "candidates": count,
        "step": step,
        "estimates": len(planted),
        "held": round(float(((low <= planted) & (planted <= high)).mean()), 4),
        "width": round(float((high - low).mean()), 4),
        "rmse": round(float(np.sqrt(np.square(p[known] - planted).mean())), 4),
    }


Rows = NDArray[np.int64]
Estimates = tuple[str, Floats, Floats, Floats]
"""The step that was reached; P(success) (m, A) of questions, NaN where insufficient; low and high ends of intervals."""


def by_estimator(pool: Pool, right: NDArray[np.bool_], learned: Rows, tested: Rows, seed: int) -> Estimates:
    """Returns what the exported estimator says of the tested questions."""
    outcomes = [_outcome(pool, row, right[row]) for row in learned.tolist()]
    with tempfile.TemporaryDirectory() as folder:
        estimator = SuccessEstimator(train_success(outcomes, SuccessOptions(out=Path(folder) / "success", seed=seed)))
    names = [f"m{column}" for column in range(right.shape[1])]
    found = np.full((3, len(tested), len(names)), np.nan)
    for place, row in enumerate(tested.tolist()):
        made = estimator.estimate(pool.questions[row], names, pool.dimensions[pool.dimension[row]])
        for column, one in enumerate(made):
            if one.p is not None and one.interval is not None:
                found[:, place, column] = one.p, *one.interval
    return estimator.rung, found[0], found[1], found[2]


def by_reading(pool: Pool, right: NDArray[np.bool_], learned: Rows, tested: Rows, seed: int) -> Estimates:
    """Returns what the fitted steps say of the tested questions, whose states are made up."""
    every = success_data([_outcome(pool, row, right[row]) for row in range(len(right))])
    rows, states = read_surfaces(pool.questions), pool.states.astype(np.float32)
    fitted = fit_success(every.take(learned), {"made up": states[learned]}, seed=seed)
    data, span = every.take(tested), fitted.span
    assert span is not None
    along, outside = span.coordinates(rows[tested])
    logit, reading = fitted.prior.log_odds(data, rows[tested]), [along]
    if fitted.heads is not None:
        logit = fitted.heads.log_odds(states[tested], logit)
        reading.append(fitted.heads.components.project(states[tested])[:, : fitted.heads.choice.components])
    logit = logit * fitted.calibration[:, 0] + fitted.calibration[:, 1]
    columns = posterior_columns(data.dimension, len(data.dimensions), reading)
    variance = np.einsum("ik,akl,il->ia", columns, fitted.posterior.covariance, columns)
    error = NORMAL_95 * np.sqrt(variance + outside[:, None] * fitted.posterior.outside)
    return fitted.rung, probability(logit), probability(logit - error), probability(logit + error)


def _outcome(pool: Pool, row: int, right: Sequence[bool]) -> QuestionOutcomes:
    agents = {f"m{column}": AgentOutcome(score=float(one)) for column, one in enumerate(right)}
    return QuestionOutcomes(str(row), str(row), pool.questions[row], pool.dimensions[pool.dimension[row]], agents)


# The page.

MEASURES = {"held": "held", "width": "width", "rmse": "error of p"}
"""Figures of a run, and their names in the table; the error is the root mean square."""
HEAD = ("world", *(f"{labels:,} labels: {noun}" for labels in LABELS for noun in MEASURES.values()))


def page() -> None:
    """Writes the block `intervals` of the page, and a table on its page of further tables."""
    worlds = read_figures(KEPT)["worlds"]
    mean = {
        place: {key: float(np.mean([run[key] for run in runs])) for key in MEASURES} for place, runs in worlds.items()
    }
    rows = [
        [name, *(f"{mean[f'{name}, {labels} labels'][key]:.2f}" for labels in LABELS for key in MEASURES)]
        for name in WORLDS
    ]
    write(PAGE, "interval-worlds", markdown(HEAD, rows))
    told = []
    for labels in LABELS:
        inside = [mean[f"{name}, {labels} labels"] for name in EXPRESSIBLE]
        outside = {name: mean[f"{name}, {labels} labels"] for name in OTHERS}
        below = [f"{name} {found['held']:.0%}" for name, found in outside.items() if found["held"] < OTHER_GOAL]
        share = f"{np.mean([found['held'] for found in inside]):.0%}"
        least = f"least {min(found['held'] for found in inside):.0%}"
        width = f"at a mean width of {np.mean([found['width'] for found in inside]):.2f}"
        first = labels == LABELS[0]
        told.append(
            f"With {labels:,} labels "
            + (
                f"the 95 % interval holds the truth in {share} of cases in {len(inside)} worlds that the model can "
                f"express ({least}), {width}. Of {len(outside)} others below {OTHER_GOAL:.0%}: "
                if first
                else f"it is {share} ({least}), {width}; below {OTHER_GOAL:.0%}: "
            )
            + f"{', '.join(below) or 'none'}."
        )
    by_state = [np.mean([mean[f"{name}, {labels} labels"]["held"] for name in STATE_WORLDS]) for labels in LABELS]
    told.append(f"Where truths follow made-up states it is {by_state[0]:.0%} and {by_state[1]:.0%}.")
    write(PAGE, "intervals", [" ".join(told)])


if __name__ == "__main__":
    main()
