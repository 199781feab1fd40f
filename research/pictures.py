"""Draws the picture of each measured page from docs/measured, into docs/figures/measured.

python -m research.pictures

Each picture is a dot plot: a row a comparison, a dot with its interval of 95 % where there is one, and a dashed line at
the value at which nothing is gained. Colours follow the reader's light or dark mode.
"""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from metaprobe.training.methods import TREES
from research.agreement.ways import BEST_FREE, SAMPLINGS, agreement_way, labels_way
from research.blocks import DOCS
from research.hero.figure import STYLE, dot, line, words
from research.hidden import headline
from research.panel.measure import SHOWN, over_strongest
from research.papers.page import TITLES, killers
from research.states.check_page import NO_FAULT

MEASURED, FIGURES = DOCS / "measured", DOCS / "figures" / "measured"
WIDTH, LEFT, RIGHT, TOP, STEP = 920, 350, 890, 62, 21
"""Pixels: the width of a picture, the ends of its axis, the top of the first row, and a row."""
LONGEST = 54
"""Most characters of a label; a longer one is cut."""
LEARNED, FREE, STATED = "learned", "control", "explicit"
"""Styles: our score, a free number, a stated one."""
Ends = list[float]
"""A value with the ends of its interval; three equal numbers where none was measured."""
Row = tuple[str, Ends, str]


@dataclass(frozen=True, slots=True)
class Picture:
    """Holds the parts of a picture: its title, what its axis means, where nothing is gained, and its rows."""

    title: str
    axis: str
    nothing: float | None
    rows: Callable[[], Iterable[Row]]
    powers: bool = False
    """Whether the values are powers of ten of a ratio."""


def main() -> None:
    """Draws all pictures."""
    FIGURES.mkdir(exist_ok=True)
    for page, picture in PICTURES.items():
        (FIGURES / f"{page}.svg").write_text(svg(picture), encoding="utf-8")


def read(name: str) -> Any:
    return json.loads((MEASURED / f"{name}.json").read_text(encoding="utf-8"))


def point(value: float) -> Ends:
    return [value, value, value]


def svg(picture: Picture) -> str:
    """Returns the drawing."""
    rows = list(picture.rows())
    values = [value for _, ends, _ in rows for value in ends]
    values += [] if picture.nothing is None else [picture.nothing]
    step = 1.0 if picture.powers else tick_of(max(values) - min(values))
    first, last = math.floor(min(values) / step), math.ceil(max(values) / step)
    low, high, bottom = first * step, last * step, TOP + STEP * len(rows)
    height = bottom + 52

    def at(value: float) -> float:
        return LEFT + (value - low) / (high - low) * (RIGHT - LEFT)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{picture.title}">',
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}" rx="8"/>',
        words(24, 34, picture.title, "title"),
    ]
    for number in range(first, last + 1):
        label = f"{10 ** (number * step):g}" if picture.powers else f"{number * step:.3g}"
        parts += [line(at(number * step), TOP - 8, at(number * step), bottom, "grid")]
        parts += [words(at(number * step), bottom + 18, label, "small middle")]
    if picture.nothing is not None:
        parts.append(line(at(picture.nothing), TOP - 8, at(picture.nothing), bottom, "ideal"))
    parts.append(words((LEFT + RIGHT) / 2, bottom + 38, picture.axis, "small middle"))
    for number, (label, (value, least, most), style) in enumerate(rows):
        y = TOP + (number + 0.5) * STEP
        label = label if len(label) <= LONGEST else f"{label[: LONGEST - 1]}…"
        parts += [words(LEFT - 12, y + 4, label, "small end"), line(at(least), y, at(most), y, style)]
        parts.append(dot(at(value), y, style, 4))
    return "\n".join([*parts, "</svg>"]) + "\n"


def tick_of(width: float) -> float:
    """Returns the distance of ticks that gives about five to ten of them."""
    power = 10.0 ** math.floor(math.log10(width))
    return next(power * part for part in (0.1, 0.2, 0.5, 1, 2) if width / (power * part) <= 9)


def points(ends: Ends) -> Ends:
    return [100 * value for value in ends]


def interval(found: dict[str, float]) -> Ends:
    return [found["estimate"], found["low"], found["high"]]


# The rows of each picture.


def before() -> Iterable[Row]:
    for task, found in read("before")["tasks"].items():
        for labels, models in found["labels"].items():
            for model, row in models.items():
                strongest = max(row["against"], key=row["auroc"].__getitem__)
                ahead = all(low > 0 and p < 0.05 for _, low, _, p in row["against"].values())
                yield f"{task}, {labels} labels, {model}", row["against"][strongest][:3], LEARNED if ahead else FREE


def benchmarks() -> Iterable[Row]:
    for row in (row for name in ("predict", "peers") for row in read(name)["rows"]):
        label = f"{row['what'].partition(' (')[0]} / {row['other']}"
        yield label, point(math.log10(row["ratio"])), LEARNED if row["ratio"] >= 1 else STATED


def bundled() -> Iterable[Row]:
    for name, control in read("bundled_controls")["within"]["controls"].items():
        yield name, control["gain"], LEARNED


def demo() -> Iterable[Row]:
    kinds = {"explicit": STATED, "learned": LEARNED}
    for row in read("demo")["default"]["methods"]:
        ends = [float(row[key]) for key in ("auroc", "auroc_low", "auroc_high")]
        yield row["method"], ends, kinds.get(row["family"], FREE)


def judges() -> Iterable[Row]:
    of = read("judges")["debates/qwen-coder-1.5b"]["targets"]["not critical, program"]
    windows = [name for name in of["stopping"] if name.startswith("terms")]
    for window in sorted(windows, key=lambda name: next(map(float, filter(str.isdigit, name.split())), math.inf)):
        stop = of["stopping"][window]
        yield f"{window.partition(', ')[2]}: AUROC of the critical flag", of["methods"][window]["auroc"], LEARNED
        yield "sound arguments stopped with the critical ones", stop["lost"], STATED
        yield "tokens saved", stop["saved"], FREE


def ladder() -> Iterable[Row]:
    for name, found in read("equal_terms")["sets"].items():
        for kind in ("pooled", "within runs") if found["runs"] > 1 else ("pooled",):
            yield f"{name}, {kind}", found[kind]["gain"], LEARNED


def loop() -> Iterable[Row]:
    ways = (("scores", "scores", STATED), ("labelled", "labels alone", FREE), ("powered", "labels and scores", LEARNED))
    for row in read("loop")["estimates"]["coverage"]:
        if row["when"] == "after" and row["labels"] == 100 and row["drawn"] == "uniform":
            for key, name, style in ways:
                yield f"{row['shift']}: {name}" if key == "scores" else name, point(row["coverage"][key]), style


def no_labels() -> Iterable[Row]:
    way = agreement_way(*SAMPLINGS[0])
    for name, found in read("no_labels")["stores"].items():
        over = found["over"][way]
        yield f"{name}: over 50 labels", over[labels_way(50)]["all"], LEARNED
        yield "over the free number that 50 labels choose", over[BEST_FREE]["all"], FREE


def panel() -> Iterable[Row]:
    found = read("panel")
    for store, one in found["samples"].items():
        for size in SHOWN:
            way, over = over_strongest(one["sizes"][size])
            yield f"{store}, {size} samples: over {way}", points(over), LEARNED
    for name, row in found["agents"].items():
        over = row["kept_over"][row["strongest_simple"]][:3]
        yield f"{name}: over {row['strongest_simple']}", points(over), LEARNED


def probes() -> Iterable[Row]:
    for gain in sorted(headline.gains(headline.read()), key=lambda gain: -gain.gain):
        name = f"{gain.row.replace('/', ', ')}: over {gain.control}"
        yield name, [gain.gain, gain.low, gain.high], LEARNED if gain.stands else FREE


def gate() -> Iterable[Row]:
    for name, found in read("gate").items():
        for look in found["report"]["looks"]:
            yield (
                f"{name.partition(',')[0]}, {name.split(', ')[1]}, {look['look']} tokens",
                interval(look["gain"]),
                LEARNED,
            )


def quality() -> Iterable[Row]:
    for name, found in read("quality")["sets"].items():
        if "methods" in found:
            trees = found["methods"][TREES]
            yield f"{name}: over the mean", trees["over_mean"], LEARNED
            yield f"over {trees['over_strongest']['control']}", trees["over_strongest"]["difference"], FREE


def reproduction() -> Iterable[Row]:
    for name, section in read("reproduction").items():
        for row in section["figures"]:
            if row["sign"] and row["form"] == "points":
                label = f"{TITLES[name]}: {row['what'].replace('the full system', 'all')}"
                yield label, points(row["here"]), LEARNED if not killers(row) else STATED


def routing() -> Iterable[Row]:
    for name, one in read("routing").items():
        if area := one.get("area"):
            yield f"{name}: over {area['strongest']}", points(area["over"][area["strongest"]][:3]), LEARNED


def rubric() -> Iterable[Row]:
    for kind in ("real", "synthetic"):
        for name, ends in read("rubric")[kind]["text"]["rmse"].items():
            yield f"{kind}: {name}", ends, LEARNED if "rater" in name and "alone" not in name else FREE


def states() -> Iterable[Row]:
    for name, found in read("states_check")["faults"].items():
        for layer, style in (("18", LEARNED), ("30", FREE)):
            label = f"{name}: layer {layer}" if layer == "18" else f"layer {layer}"
            if (name, layer) == NO_FAULT:
                continue
            yield label, point(math.log10(max(found[layer]["worst"], 0.01))), style


def systems() -> Iterable[Row]:
    for name, found in read("live_signals")["gains"].items():
        control = next(one for one in found["controls"] if one["name"] == "best agent alone")
        yield f"MetaCogAgent, confidence: {name}", points(control["gain"]), LEARNED


def travel() -> Iterable[Row]:
    for row in read("travel")["strangers"]["rows"]:
        yield f"{row['name']}: over the mean", row["over_mean"], LEARNED
        yield f"over the best free number ({row['best']})", row["over_best"], FREE


def writing() -> Iterable[Row]:
    for name, found in read("writing_heads").items():
        yield f"{name}: commonest label", found["majority"], FREE
        for model, prompted in found["prompted"].items():
            yield f"{name}: {model}, prompted", prompted["accuracy"], STATED
        yield f"{name}: trained on words", found["words"], LEARNED
        if found["hidden"]:
            yield f"{name}: trained on hidden states", found["hidden"], LEARNED


GAIN = "difference of AUROC with 95 % interval"
PICTURES = {
    "before": Picture("Prompt states over the strongest control; blue: ahead of every one", GAIN, 0, before),
    "speed": Picture("How many times as fast as the other side", "times as fast (logarithmic)", 0, benchmarks, True),
    "bundled": Picture("bundled:quality over each control, within runs", GAIN, 0, bundled),
    "demo": Picture("The demo: who distinguishes right from wrong answers", "AUROC with 95 % interval", 0.5, demo),
    "judges": Picture(
        "What each window says, and stopping there costs and saves", "AUROC, or share; 95 % interval", 0.5, judges
    ),
    "ladder": Picture("The predictor over the free number that is best on the very answers", GAIN, 0, ladder),
    "loop": Picture("How often an interval of 95 % holds the truth after a shift", "share of replays", 0.95, loop),
    "no-labels": Picture("Learned from 100 questions asked twice, without labels", GAIN, 0, no_labels),
    "panel": Picture(
        "The kept answer over the strongest simple way to keep one", "points of accuracy with 95 % interval", 0, panel
    ),
    "probes": Picture("Blend over the strongest control; blue: ahead of every one", GAIN, 0, probes),
    "gate": Picture("The gate over the mean log-probability of the same tokens", GAIN, 0, gate),
    "quality": Picture("Trees over the mean (blue) and over the strongest free number (grey)", GAIN, 0, quality),
    "reproduction": Picture("The papers' differences here; orange: falls to a control", "points", 0, reproduction),
    "routing": Picture("The panel over the strongest simple way, over all budgets", "points", 0, routing),
    "rubric": Picture(
        "Error of the predicted rating; blue: the rater is known", "RMSE on the scale 1 to 4", None, rubric
    ),
    "states": Picture(
        "How far the canaries' states are off; dashed: the limit",
        "largest difference, in the states' spread (logarithmic)",
        math.log10(0.2),
        states,
        True,
    ),
    "systems": Picture("MetaCogAgent over its best agent alone", "points of accuracy with 95 % interval", 0, systems),
    "travel": Picture("The scaled total on models and tasks left out", GAIN + ", within runs", 0, travel),
    "writing-assistant": Picture("Who tells the stage and the need of reasoning", "share right", None, writing),
}
"""Measured page -> its picture."""

if __name__ == "__main__":
    main()
