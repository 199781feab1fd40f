"""Output of the commands: a short table for people, or with `--json` the JSON that programs read."""

import json
import os
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import click

from metaprobe.checkpoints.manifest import printable
from metaprobe.checkpoints.rendered_table import TERMINAL_CHARS, Table, number

Line = Mapping[str, Any]
FAR_FROM_BUDGET = 0.1
"""Largest share of a budget by which spending may differ from the budget without a note."""
EXAMPLE_CHARS = 68
"""Most characters of a question with its answer that fit beside the other columns on a terminal."""


def printable_lines(text: str) -> str:
    """Returns a text of several lines with its control characters spelled out.

    Otherwise names in a file from elsewhere could send commands to the terminal.
    """
    return "\n".join(map(printable, text.split("\n")))


def show_result(result: Line, as_json: bool, table: Callable[[Line], Iterable[str]]) -> None:
    """Prints one result: as an indented JSON document, or as `table` writes it."""
    click.echo(json.dumps(result, indent=1) if as_json else "\n".join(table(result)))


def panel_table(result: Line) -> Iterator[str]:
    """Yields a row for each number of answers with every way to pick, and one for each mean number of answers."""
    sizes = result["answers"]
    ways = list(next(iter(sizes.values()))["accuracy"])
    rows = [["answers", *ways, "AUROC of kept"]]
    for size, figures in sizes.items():
        auroc = "-" if figures["auroc"] is None else shown_number(figures["auroc"]["estimate"])
        rows.append([size, *(shown_number(figures["accuracy"][way]["estimate"]) for way in ways), auroc])
    yield f"kept by: {result['pick']}; accuracy of the kept answer on {result['questions']} questions"
    yield from aligned(rows)
    if budgets := result["mean_answers"]:
        rows = [["mean answers", "panel", "spent", "strongest simple way", "its accuracy", "panel over it"]]
        for budget, figures in budgets.items():
            gain = figures["panel_over_it"]
            gap = f"{gain['estimate']:+.3f} [{gain['low']:+.3f}, {gain['high']:+.3f}]"
            strongest_way, panel_accuracy = figures["strongest_simple"], shown_number(figures["panel"]["estimate"])
            rows.append(
                [
                    budget,
                    panel_accuracy,
                    f"{figures['answers']:.1f}",
                    strongest_way,
                    shown_number(figures[strongest_way]["estimate"]),
                    gap,
                ]
            )
        yield ""
        yield from aligned(rows)
    if result.get("reason"):
        yield f"reason: {result['reason']}"


def quickstart_table(result: Line) -> Iterator[str]:
    """Yields four steps on recorded answers, the flags beside the truth, and the commands for the user's answers."""
    labels, right, held_out = result["labels"], result["right_among_labels"], result["held_out"]
    auroc, flagged, caught, right_flagged = (result[name] for name in ("auroc", "flagged", "caught", "right_flagged"))
    agreement, least_sure_count = result["agreement_auroc"], result["least_sure_count"]
    wrong_among_least_sure = (
        f"Of the {least_sure_count} least sure answers {result['wrong_among_least_sure']:.0%} are wrong, of all"
    )
    asked_twice = f"{result['sampled_questions']} other questions, each asked twice"
    yield f"{labels + len(held_out)} recorded answers of {result['model']}, to questions of as many kinds; no network."
    yield ""
    yield f"1. Score   Of a right and a wrong answer the right one has the higher score in {_percent(auroc)} of pairs."
    yield "           Nothing is flagged yet: log-probabilities do not say how often this model is right."
    yield f"2. Agree   {asked_twice}, teach without labels whether an answer would be said again."
    order = f"The right one is the surer in {_percent(agreement)} of pairs."
    yield f"           {wrong_among_least_sure} {1 - result['right']:.0%}. {order}"
    yield f"3. Adapt   {labels} labels ({right} right, {labels - right} wrong) make the score a probability."
    yield f"           Flagged is what lies below {result['threshold']:.2f}: as many as are expected to be wrong."
    yield f"4. Decide  The other {len(held_out)} answers, whose labels were not used, by flag and truth:"
    yield ""
    rows = [["verdict", "truth", "answers", "P(said again)", "P(right)", "an example"]]
    for flag, truth in ((False, True), (True, False), (True, True), (False, False)):
        of_kind = [answer for answer in held_out if (answer["flagged"], answer["right"]) == (flag, truth)]
        texts = [" ".join(f"{answer['question']} -> {answer['answer']}".split()) for answer in of_kind]
        scores = [answer["score"] for answer in of_kind]
        cells = ["FLAG" if flag else "keep", "right" if truth else "wrong", str(len(of_kind))]
        agreements = [answer["agreement"] for answer in of_kind]
        spans = [f"{min(values):.2f} to {max(values):.2f}" for values in (agreements, scores)]
        rows.append([*cells, *spans, next(text for text in texts if len(text) <= EXAMPLE_CHARS)])
    yield from aligned(rows)
    yield ""
    cost = f"costs {_percent(right_flagged)} of the right ones."
    yield f"The flag catches {_percent(caught)} of the wrong answers and {cost}"
    yield f"It takes {_percent(flagged)} of all; as many flags drawn by lot would take that share of either kind."
    yield f"Of the kept answers {result['right_among_kept']:.0%} are right, of all {result['right']:.0%}."
    yield f"Intervals of 95 %. These answers are among the {result['learned_from']:,} that set the scale of the score."
    yield "Its order, the total log-probability over the root of the length, was not learned."
    yield ""
    yield "Next, with your own answers (one JSON object a line: docs/start.md):"
    yield ""
    yield "  pip install '.[fit,api]'                                             # in a checkout of metaprobe"
    yield "  metaprobe teach URL questions.jsonl --out out/taught                 # no labels: each asked twice"
    yield "  metaprobe advise labelled.jsonl                                      # what your log can support"
    yield "  metaprobe adapt bundled:quality labelled.jsonl --out out/mine        # fifty labels, as here"
    yield "  metaprobe score out/mine answers.jsonl                               # P(right) and a flag for each answer"


def advice_table(advised: Line) -> Iterator[str]:
    """Yields the table of advice: the log, its labels, and for each signal whether it can be had, why, and the next
    commands."""
    yield f"{advised['what']}: {advised['answers']:,} answers to {advised['questions']:,} questions"
    labels = ", ".join(f"{name} {count:,}" for name, count in advised["labels"].items()) or "none"
    yield f"labels: {labels}; {advised['right']:,} questions with a right answer, {advised['wrong']:,} with a wrong one"
    yield from (f"  {count:,} x {source}" for source, count in advised["taken"].items())
    if advised["left_out"]:
        yield f"{advised['left_out']:,} more cannot be read:"
        yield from (f"  {count:,} x {reason}" for reason, count in advised["reasons"].items())
    for signal in advised["signals"]:
        yield ""
        yield from textwrap.wrap(
            f"{'yes' if signal['supported'] else 'no ':3}  {signal['signal']}: {signal['why']}", TERMINAL_CHARS
        )
        yield from (f"       {line}" for line in signal["commands"])


def check_table(checked: Line) -> Iterator[str]:
    """Yields the result, each figure before and after with its interval and margin, and what to do."""
    yield f"{checked['status']}, compared with {checked['reference']}"
    rows = [["figure", "before", "after", "change", "95 % interval", "accepted", ""]]
    for criterion in checked["criteria"]:
        accepted = [
            f"{'from' if end == 'low' else 'to'} {criterion[end]:+g}"
            for end in ("low", "high")
            if criterion[end] is not None
        ]
        change = criterion["change"]
        values = [
            shown_number(criterion["before"]),
            shown_number(criterion["after"]["estimate"]),
            shown_number(change["estimate"], sign=True),
        ]
        rows.append(
            [criterion["name"], *values, _interval(change, sign=True), " ".join(accepted), criterion["verdict"]]
        )
    yield from aligned(rows)
    yield f"{checked['criteria'][0]['after']['n']} answers in {checked['criteria'][0]['after']['groups']} groups"
    yield from notes(("note", reason) for reason in checked["reasons"])
    if checked["status"] in NEXT_COMMANDS:
        yield from notes([("next", NEXT_COMMANDS[checked["status"]])])
    elif checked["more"]:
        yield from notes([("next", f"label about {checked['more']:,} more answers")])


NEXT_COMMANDS = {
    "THRESHOLD STALE": "metaprobe adapt CHECKPOINT RUNS --out NEW, with the answers after the change",
    "SCORER DEGRADED": "metaprobe train quality RUNS --out NEW, with the answers after the change; then promote",
}
"""Maps the status of a check to the command that mends it."""


def asking_table(figures: Line) -> Iterator[str]:
    """Yields, for each budget, accuracy and cost of asking by the panel and of every simple way to ask."""
    yield f"{figures['questions']} questions of {figures['groups']} groups, agents {', '.join(figures['agents'])}"
    if figures.get("logged"):
        rows = [["estimated from logged decisions", "accuracy", "95 % interval"]]
        rows += [
            [name, shown_number(figure["estimate"]), _interval(figure)] for name, figure in figures["accuracy"].items()
        ]
        yield from aligned(rows)
        yield f"The estimates {'may be' if figures['reliable'] else 'come from too few decisions to be'} relied on."
        return
    for budget, figure in figures["budgets"].items():
        panel_accuracy = figure["accuracy"]
        cost = f"{figure['cost_per_1000']['estimate']:.4g}"
        rows = [["who decides", "accuracy", "95 % interval", "$ / 1,000", "panel minus it"]]
        rows.append(
            [f"panel ({figure['by']})", shown_number(panel_accuracy["estimate"]), _interval(panel_accuracy), cost, ""]
        )
        for name, way in figure["ways"].items():
            gain = way["panel_over_it"]
            gap = f"{shown_number(gain['estimate'], sign=True)} {_interval(gain, sign=True)}"
            accuracy = way["accuracy"]
            rows.append(
                [name, shown_number(accuracy["estimate"]), _interval(accuracy), f"{way['cost_per_1000']:.4g}", gap]
            )
        for name, end in (
            (f"best agent, {figure['best_single']['agent']}", figure["best_single"]),
            ("oracle", figure["oracle"]),
        ):
            accuracy = end["accuracy"] if isinstance(end["accuracy"], float) else end["accuracy"]["estimate"]
            rows.append([name, shown_number(accuracy), "", f"{end['cost_per_1000']:.4g}", ""])
        line = f"budget {budget} US dollars for 1,000 questions; {figure['asked']:.2f} agents asked of each"
        overspent_share = figure["cost_per_1000"]["estimate"] / float(budget) - 1
        if abs(overspent_share) > FAR_FROM_BUDGET:
            line += f"; {abs(overspent_share):.0%} {'more' if overspent_share > 0 else 'less'} than the budget is spent"
        yield line
        yield from aligned(rows)
        yield ""


def aligned(rows: list[list[str]]) -> list[str]:
    """Returns the lines of a table whose first row is its head. A row is never broken into several lines."""
    return Table.of(rows[0], rows[1:]).text(width=None)


def text_table(rows: list[list[str]], named_notes: Iterable[tuple[str, Any]] = ()) -> Iterator[str]:
    """Yields the lines of a table whose first row is its head, and below it a sentence for each different note.

    Args:
        rows: the cells of each row, the head first; empty if there are only notes.
        named_notes: pairs of a name and its note. A note of several names is printed once, after these names. Empty
            notes are left out.
    """
    if rows:
        yield from aligned(rows)
    yield from notes(named_notes)


def notes(named_notes: Iterable[tuple[str, Any]]) -> Iterator[str]:
    """Yields the lines below a table: each different note once, after the names that it belongs to."""
    names_of_note: dict[str, list[str]] = {}
    for name, note in named_notes:
        if note:
            names_of_note.setdefault(str(note), []).append(name)
    for note, names in names_of_note.items():
        yield from textwrap.wrap(f"{', '.join(dict.fromkeys(names))}: {note}", TERMINAL_CHARS, subsequent_indent="  ")


def shown_number(value: Any, digits: int = 3, *, sign: bool = False) -> str:
    """Returns a number as tables show it: a text as it is, "-" for None, and three digits from 1,000 on."""
    if value is None or isinstance(value, str):
        return str(value or "-")
    if abs(value) >= 1000:
        return f"{value:.3g}"
    return number(float(value), digits, signed=sign)


def _interval(interval: Line, digits: int = 3, *, sign: bool = False) -> str:
    low, high = (shown_number(interval.get(end), digits, sign=sign) for end in ("low", "high"))
    return f"{low} to {high}"


def _percent(share: Line) -> str:
    """Returns a share with its interval, in percent."""
    return f"{share['estimate']:.0%} [{100 * share['low']:.0f}, {100 * share['high']:.0f}]"


def say_checkpoint(checkpoint: Any) -> None:
    """Prints the description of a checkpoint that was just written."""
    from metaprobe.checkpoints import describe

    click.echo(describe(checkpoint))


def say_taught(taught: Any) -> None:
    """Prints what was learned, what is flagged, what to run next, and what labels would add, a line each.

    After a dry run it prints nothing.
    """
    if taught.checkpoint is None:
        return
    manifest, path = taught.checkpoint.manifest, shlex.quote(str(taught.checkpoint.path))
    auroc, gain = (manifest.metrics.get(name) for name in ("auroc", "auroc_gain_over_mean_log_probability"))
    learned = f"what the model would say again, from {taught.questions} questions and no label"
    if auroc is not None:
        learned += f": AUROC {auroc.estimate:.3f} [{auroc.low:.3f}, {auroc.high:.3f}] on pairs of answers held out"
    if gain is not None:
        learned += f", {gain.estimate:+.3f} [{gain.low:+.3f}, {gain.high:+.3f}] over the mean log-probability"
    threshold, point = manifest.thresholds.get("flag"), manifest.operating
    flagged = "nothing: too few answers carry a threshold; ask more questions"
    if threshold is not None:
        share = "" if point is None else f", {point.flagged.estimate:.0%} of the answers held out"
        flagged = f"answers of P(said again) below {threshold:.3f}{share}; not P(right), which takes labels"
    answers = shlex.quote(str(taught.answers))
    click.echo(f"learned   {learned}")
    click.echo(f"flags     {flagged}")
    label = f'write "correct": 0 or 1 into 20 to 50 lines of {answers}, save these as labelled.jsonl'
    adapt = f"metaprobe adapt {path} labelled.jsonl --out {path}-right"
    click.echo(f"next      metaprobe score {path} ANSWERS.jsonl")
    click.echo(f"P(right)  {label}: {adapt}")


def wait_without_spinning() -> None:
    """Makes threads of OpenMP sleep while they wait, so that they take no time from other programs.

    It must be called before libraries with threads are loaded.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def command_line() -> str:
    """Returns the command line that started this program, quoted for a shell. What the program writes records it."""
    line = shlex.join(["metaprobe", *sys.argv[1:]])
    return line.encode("utf-8", "backslashreplace").decode()  # a path may hold any bytes
