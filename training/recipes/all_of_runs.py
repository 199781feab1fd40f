"""From stored runs to a flag in use: compares signals, exports the recommended one, and uses it on new answers."""

import itertools
import json
import shlex
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metaprobe.checkpoints import Checkpoint, Metric, load_checkpoint
from metaprobe.checkpoints.rendered_table import TERMINAL_CHARS, Table, format_interval
from metaprobe.eval.answer_table import bare_table, group_of
from metaprobe.eval.controls import JOINED, STATED, describe_control
from metaprobe.eval.metrics.bootstrap import cluster_weights
from metaprobe.eval.report.words import recommended
from metaprobe.eval.results import Comparison, MethodResult, plain
from metaprobe.probes.hidden import HiddenProbe
from metaprobe.probes.quality import QualityPredictor
from metaprobe.probes.score_lines import store_lines
from metaprobe.probes.text import TextReader
from metaprobe.records.errors import RecordError
from metaprobe.records.store import RunStore
from metaprobe.records.types import Call, Item, Run
from metaprobe.training.methods import AFTER, BEFORE, BLEND, LADDER, MEAN_LOGPROB
from metaprobe.training.recipes.compare_runs import (
    comparison_of_study,
    require_report,
    with_place_read,
    write_method,
    write_report,
)
from metaprobe.training.stored_runs import load_runs
from metaprobe.training.study import study
from metaprobe.training.taught_by_samples import TAUGHT, sample_methods, stage_of_labels
from metaprobe.training.thresholds import measure_shares
from metaprobe.training.training_options import OnStep, ReplaceOptions

RIGHT_LABEL = "correct"
SHOWN_FLAGS, SHOWN_KEPT = 3, 2
"""Numbers of flagged and of kept answers that are printed. They are the first by the alphabet, so that nobody picks
them.
"""
SHOWN_CHARS = 36
"""Longest question, and longest answer, in a line of the printed table; a longer text is shortened."""
FLAGS_FILE = "flags.json"
"""File beside the report: every answer that was flagged or kept, with the truth, the counts, and the printed lines."""
NEEDS = {
    STATED: "explicit: the model is asked",
    MEAN_LOGPROB: "free number",
    TAUGHT: "implicit, without labels",
    JOINED: "control, with labels: words and log-probabilities",
    LADDER: "implicit, with labels: log-probabilities",
    BEFORE: "implicit, with labels: hidden states of the prompt",
    AFTER: "implicit, with labels: hidden states of the answer",
    BLEND: "implicit, with labels: both of these",
}
"""Maps a method of the short table to what it needs, in the table's order. The report also shows every other control.
"""


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """One answer that no fit has seen, as the loaded checkpoint judges it, and the truth."""

    question: str
    answer: str
    gold: str
    group: str
    score: float
    flagged: bool
    right: bool


@dataclass(frozen=True, slots=True)
class CaughtMistakes:
    """The effect of a checkpoint's flag on n answers that no fit and no choice has seen."""

    answers: tuple[JudgedAnswer, ...]
    flagged: Metric
    """Share of all answers that is flagged."""
    caught: Metric
    """Share of the wrong answers that is flagged."""
    cost: Metric
    """Share of the right answers that is flagged."""
    unjudged: int = 0
    """Number of further labelled answers, which the checkpoint cannot score. Nothing else counts them."""

    @property
    def mistakes(self) -> int:
        """Number of wrong answers."""
        return sum(not answer.right for answer in self.answers)

    @property
    def found(self) -> int:
        """Number of wrong answers that are flagged."""
        return sum(answer.flagged and not answer.right for answer in self.answers)

    @property
    def lost(self) -> int:
        """Number of right answers that are flagged."""
        return sum(answer.flagged and answer.right for answer in self.answers)

    @property
    def sentence(self) -> str:
        """Three sentences: the wrong answers found and the right answers lost, beside flags by lot; the share of right
        answers among those kept; the answers that could not be judged.
        """
        n, right = len(self.answers), len(self.answers) - self.mistakes
        kept_count = n - self.found - self.lost
        text = (
            f"Of the {self.mistakes} mistakes it found {self.found} ({_percent(self.caught)}), and it cost {self.lost} "
            f"of the {right} right ones ({_percent(self.cost)}); flagging at random: {self.flagged.estimate:.0%} of "
            f"each."
        )
        if kept_count:
            kept_right = (right - self.lost) / kept_count
            text += (
                f" Of the {kept_count} answers that it keeps {kept_right:.0%} are right; of all {n}, {right / n:.0%}."
            )
        if self.unjudged:
            text += f" {self.unjudged} further answers could not be judged, and count nowhere here."
        return text

    def shown(self) -> list[JudgedAnswer]:
        """Returns the first flagged and the first kept answers, in the order of the answers."""
        flagged = [answer for answer in self.answers if answer.flagged][:SHOWN_FLAGS]
        return [*flagged, *[answer for answer in self.answers if not answer.flagged][:SHOWN_KEPT]]


@dataclass(frozen=True, slots=True, eq=False)
class TrainedRuns:
    """A comparison of signals on stored runs, and the recommended signal in use on answers of other questions."""

    comparison: Comparison
    report: Path
    method: str
    """Name of the method that was exported."""
    recommended: bool
    """Whether the report recommends it; else it is the learned method that the folds chose."""
    checkpoint: Checkpoint
    used: CaughtMistakes
    unseen: Path
    """The store of the answers that were flagged or kept."""
    stage: str
    """The stage of the answers."""

    @classmethod
    def train(
        cls,
        stores: Sequence[Path],
        unseen: Path,
        folder: Path,
        *,
        notes: Sequence[str] = (),
        folds: int = 5,
        seed: int = 0,
        command: str = "",
        on_step: OnStep,
    ) -> "TrainedRuns":
        """Compares every signal, exports the recommended one, loads it, and flags the answers of another store.

        Args:
            stores: run stores of one model with hidden states, in which some questions were asked at least twice.
            unseen: run store of other questions. Nothing is fitted to its answers and nothing is chosen on them.
            folder: gets `checkpoints/NAME` and `report/`; what was made there before is replaced.
            notes: sentences that the report shall hold.
            folds: outer folds by group.
            seed: seed of folds and resamples.
            command: the line that asked for this, for the records of what is made.
            on_step: is told each step in words.

        Raises `RecordError` where questions of `unseen` are among those of `stores`, and where the answers do not
        suffice for the comparison or for a flag.
        """
        learned_names = {name for store in stores for run in RunStore(store) for name in _names_of(run.item)}
        if twice := sorted({name for run in RunStore(unseen) for name in _names_of(run.item)} & learned_names):
            raise RecordError(f"{unseen} holds questions that are learned from, such as {twice[0]!r}; expected others")
        further = sample_methods(stores)
        answers = study(stores, own_methods=lambda evidence, names: further, folds=folds, seed=seed, on_step=on_step)
        with ReplaceOptions(replace=True).replacing():
            on_step("intervals")
            compared = comparison_of_study(answers, notes=notes, command=command, on_step=on_step)
            use = _exportable(compared)
            on_step(f"audit and export: {use.name}")
            path = folder / "checkpoints" / use.name.replace(",", "").replace(" ", "-")
            checkpoint = write_method(path, answers, use.name, command=command)
            on_step("report: tables and figures")
            report = write_report(folder / "report", with_place_read(compared, use.name, checkpoint), answers)
        on_step("load it, and flag the answers that nobody has seen")
        advised = recommended(compared)
        used = flag_answers(path, unseen, seed=seed)
        follows_advice = advised is not None and advised.name == use.name
        trained = cls(
            compared, report, use.name, follows_advice, checkpoint, used, unseen, stage_of_labels(load_runs(stores))
        )
        trained.write_flags()
        return trained

    @staticmethod
    def require() -> None:
        """Raises `MissingExtra` if a needed package is not installed. Call it before anything is computed."""
        require_report()

    def lines(self) -> list[str]:
        """Returns the lines to print: the short comparison, the exported method, its flags beside the truth, and the
        next commands.
        """
        comparison = self.comparison
        items, model = comparison.provenance["items"], comparison.provenance["model"]
        answers_clause = f"{items} questions, {len(comparison.y)} answers of {model}"
        chosen = "The report recommends" if self.recommended else "The report recommends no method yet; shown is"
        new, path = len(self.used.answers), shlex.quote(str(self.checkpoint.path))
        return [
            f"{answers_clause}, {comparison.base_rate:.0%} right. AUROC on questions left out (0.50 is guessing):",
            "",
            *Table.of(["signal", "what it is", "AUROC"], short_rows(comparison)).text(width=None),
            "",
            *textwrap.wrap(f"{chosen} {self.method}: {_against(comparison, self.method)}", TERMINAL_CHARS),
            *textwrap.wrap(
                f"Exported, loaded, and used on {new} answers to other questions, to which nothing was fitted and on "
                "which nothing was chosen. By the alphabet the first that it flags, and the first that it keeps:",
                TERMINAL_CHARS,
            ),
            "",
            *self.flag_lines(),
            "",
            f"report      {self.report}",
            f"checkpoint  {self.checkpoint.path}",
            f"next        metaprobe score {path} {self.unseen}    # the same flags, a line for each answer",
            *(
                f"no labels   metaprobe train quality {store} --stage {self.stage} --target agreement --out C"
                for store in [comparison.runs] * (TAUGHT in {method.name for method in comparison.methods})
            ),
        ]

    def flag_lines(self) -> list[str]:
        """Returns the lines of a table of flagged and kept answers beside the truth, and below it how many wrong
        answers were found and how many right ones were lost.
        """
        shown, (before, after) = self.used.shown(), common_ends([answer.question for answer in self.used.answers])
        question_column = f"{before}...{after}" if before or after else "question"
        rows = [
            [
                "FLAG" if answer.flagged else "keep",
                f"{answer.score:.2f}",
                "right" if answer.right else "wrong",
                _brief(answer.question[len(before) : len(answer.question) - len(after)]),
                _brief(answer.answer),
                answer.gold,
            ]
            for answer in shown
        ]
        table = Table.of(["", "P(right)", "truth", question_column, "answer", "right is"], rows)
        return [*table.text(width=None), "", *textwrap.wrap(self.used.sentence, TERMINAL_CHARS)]

    def write_flags(self) -> None:
        """Writes `FLAGS_FILE` beside the report."""
        content = {
            "method": self.method,
            "recommended": self.recommended,
            "mistakes": self.used.mistakes,
            "found": self.used.found,
            "lost": self.used.lost,
            **plain(self.used),
            "table": self.flag_lines(),
            "printed": self.lines(),
        }
        path = self.report.parent / FLAGS_FILE
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _names_of(item: Item) -> list[str]:
    """Returns keys by which two items are the same question: the group, and the normalised text if there is one."""
    question_text = " ".join(" ".join((item.question, *item.choices, *item.fields.values())).casefold().split())
    return [group_of(item), *[question_text] * bool(item.question.strip())]


def common_ends(texts: Sequence[str]) -> tuple[str, str]:
    """Returns the common prefix and suffix of all texts, in whole words; empty if a text has nothing else."""
    words = [text.split(" ") for text in texts]
    before = " ".join(_same_at_first(words))
    after = " ".join(reversed(_same_at_first([list(reversed(each)) for each in words])))
    before, after = f"{before} " if before else "", f" {after}" if after else ""
    return (before, after) if all(len(text) > len(before) + len(after) for text in texts) else ("", "")


def _same_at_first(texts: Sequence[Sequence[str]]) -> list[str]:
    """Returns the words that all texts begin with."""
    shared = itertools.takewhile(lambda words: len(set(words)) == 1, zip(*texts, strict=False))
    return [words[0] for words in shared]


def short_rows(comparison: Comparison) -> list[list[str]]:
    """Returns the rows of the short table: explicit, free and implicit signals, each with its AUROC and interval."""
    by_name = {method.name: method for method in comparison.methods}
    strongest = comparison.controls[0]
    needs = dict(NEEDS)
    needs.setdefault(strongest.name, "strongest simple control")
    return [
        [
            name,
            note if name != strongest.name or note.startswith("strongest") else f"{note} (strongest simple control)",
            format_interval(by_name[name].auroc),
        ]
        for name, note in needs.items()
        if name in by_name
    ]


def flag_answers(checkpoint: Path, store: Path, *, seed: int = 0) -> CaughtMistakes:
    """Loads a checkpoint and returns its flags on the labelled answers of a store, measured against the labels.

    Raises `RecordError` where the checkpoint flags none of them, and where the answers are all right or all wrong.
    """
    loaded = load_checkpoint(checkpoint)
    kind = loaded.manifest.kind
    makers: Mapping[str, Callable[[Checkpoint], Any]] = {"text": TextReader, "hidden": HiddenProbe.of}
    predictor: Callable[[Checkpoint], Any] = QualityPredictor.of
    reader = makers.get(kind, predictor)(loaded)
    calls: dict[str, tuple[Run, Call]] = {call.id: (run, call) for run in RunStore(store) for call in run.calls}
    judged = []
    for line in store_lines(reader, store):
        run, call = calls[line["call"]]
        right = run.label(RIGHT_LABEL, call.id)
        if right is None or line["score"] is None or line["flagged"] is None:
            continue
        gold = run.item.gold[0] if run.item.gold else ""
        texts = run.item.question, call.text.strip(), gold, group_of(run.item)
        judged.append(JudgedAnswer(*texts, float(line["score"]), bool(line["flagged"]), bool(right)))
    judged.sort(key=lambda answer: (answer.group, answer.answer))
    shares = None
    if judged:
        y = np.array([answer.right for answer in judged], dtype=np.int64)
        table = bare_table(y, np.array([answer.group for answer in judged]))
        flagged: NDArray[np.bool_] = np.array([answer.flagged for answer in judged])
        shares = measure_shares(table, flagged, cluster_weights(table.groups.tolist(), seed=seed))
    if shares is None:
        raise RecordError(
            f"{checkpoint} judges {len(judged)} labelled answers of {store}, none of them wrong or none right; "
            "expected some of both, and a stored threshold: ask more questions"
        )
    labelled = sum(run.label(RIGHT_LABEL, name) is not None for name, (run, _) in calls.items())
    return CaughtMistakes(tuple(judged), *shares, unjudged=labelled - len(judged))


def _exportable(comparison: Comparison) -> MethodResult:
    """Returns the recommended method where there is a checkpoint of it, else the learned one that the folds chose."""
    advised = recommended(comparison)
    if advised is not None and comparison.exported:
        return advised
    return next(method for method in comparison.methods if method.name == comparison.headline)


def _against(comparison: Comparison, name: str) -> str:
    """Returns the method's gain over the strongest simple control, with its interval."""
    method = next(method for method in comparison.methods if method.name == name)
    over = method.controls
    if over is None:
        return "no learned method is shown to beat it."
    gain, first = over.strongest.difference, describe_control(over.strongest.name)
    count = len(over.controls)
    gain_clause = f"{format_interval(gain, signed=True)} AUROC over {first}, the strongest of {count} controls."
    return f"{gain_clause} It is shown to beat {count - len(over.standing)} of them."


def _brief(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= SHOWN_CHARS else f"{text[: SHOWN_CHARS - 3]}..."


def _percent(share: Metric) -> str:
    """Returns a share with its interval, in percent."""
    return f"{share.estimate:.0%} [{100 * share.low:.0f}, {100 * share.high:.0f}]"
