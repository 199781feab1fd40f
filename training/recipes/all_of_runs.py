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
    write_scores,
)
from metaprobe.training.stored_runs import load_runs
from metaprobe.training.study import study
from metaprobe.training.taught_by_samples import TAUGHT, sample_methods, stage_of_labels
from metaprobe.training.thresholds import measure_shares
from metaprobe.training.training_options import OnStep, ReplaceOptions

RIGHT_LABEL = "correct"
SHOWN_FLAGS, SHOWN_KEPT = 3, 2
"""Numbers of flagged and of kept answers that are printed. The first in alphabetical order are taken, so that nobody
picks them.
"""
SHOWN_CHARS = 36
"""Longest question, and longest answer, in a line of the printed table; a longer text is shortened."""
FLAGS_FILE = "flags.json"
"""File beside the report: every answer that was flagged or kept, with the truth, the counts, and the printed lines."""
NEEDS_OF_METHOD = {
    STATED: "explicit: the model is asked",
    MEAN_LOGPROB: "free number",
    TAUGHT: "implicit, without labels",
    JOINED: "control, with labels: words and log-probabilities",
    LADDER: "implicit, with labels: log-probabilities",
    BEFORE: "implicit, with labels: hidden states of the prompt",
    AFTER: "implicit, with labels: hidden states of the answer",
    BLEND: "implicit, with labels: both of these",
}
"""Maps a method of the short table to its kind and what it needs, in the table's order. The report shows all controls.
"""


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """One answer that no fit has seen, with the verdict of the loaded checkpoint and the truth."""

    question: str
    answer: str
    gold: str
    """The first right answer of the item; empty if the item states none."""
    group: str
    score: float
    """P(right) by the checkpoint."""
    flagged: bool
    right: bool
    """Whether the label calls the answer right."""


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
    """Number of further labelled answers, which the checkpoint cannot score. No other figure counts them."""

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
        """Up to three sentences: wrong answers found and right answers lost, beside flags at random; the share of right
        answers among those kept; answers that could not be judged.
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
            notes: sentences to add to the report.
            folds: outer folds by group.
            seed: seed of folds and resamples.
            command: the command line, which checkpoint and report record.
            on_step: called with each step in words.

        Raises `RecordError` if questions of `unseen` are among those of `stores`, and if the answers do not suffice for
        the comparison or for a flag.
        """
        # The questions of the two sides must differ.
        learned_names = {name for store in stores for run in RunStore(store) for name in _names_of(run.item)}
        if shared_names := sorted({name for run in RunStore(unseen) for name in _names_of(run.item)} & learned_names):
            raise RecordError(
                f"{unseen} holds questions that are learned from, such as {shared_names[0]!r}; expected others"
            )
        # Compare, export, and write the report.
        sample_based = sample_methods(stores)
        answers = study(
            stores, own_methods=lambda evidence, names: sample_based, folds=folds, seed=seed, on_step=on_step
        )
        with ReplaceOptions(replace=True).replacing():
            on_step("intervals")
            write_scores(folder / "report", answers)
            compared = comparison_of_study(answers, notes=notes, command=command, on_step=on_step)
            exported_method = _exportable(compared)
            on_step(f"audit and export: {exported_method.name}")
            path = folder / "checkpoints" / exported_method.name.replace(",", "").replace(" ", "-")
            checkpoint = write_method(path, answers, exported_method.name, command=command)
            on_step("report: tables and figures")
            report = write_report(folder / "report", with_place_read(compared, exported_method.name, checkpoint))
        # Flag the answers of the other store.
        on_step("load it, and flag the answers that nobody has seen")
        advised = recommended(compared)
        used = flag_answers(path, unseen, seed=seed)
        follows_advice = advised is not None and advised.name == exported_method.name
        trained = cls(
            compared,
            report,
            exported_method.name,
            follows_advice,
            checkpoint,
            used,
            unseen,
            stage_of_labels(load_runs(stores)),
        )
        trained.write_flags()
        return trained

    @staticmethod
    def require() -> None:
        """Raises `MissingExtra` if a needed package is not installed. Call it before anything is computed."""
        require_report()

    def lines(self) -> list[str]:
        """Returns the lines to print: the short comparison, the exported method, its flags and the truth, and the next
        commands.
        """
        comparison = self.comparison
        items, model = comparison.provenance["items"], comparison.provenance["model"]
        answers_clause = f"{items} questions, {len(comparison.y)} answers of {model}"
        recommendation = (
            "The report recommends" if self.recommended else "The report recommends no method yet; shown is"
        )
        new_count, path = len(self.used.answers), shlex.quote(str(self.checkpoint.path))
        return [
            f"{answers_clause}, {comparison.base_rate:.0%} right. AUROC on questions left out (0.50 is guessing):",
            "",
            *Table.of(["signal", "what it is", "AUROC"], short_rows(comparison)).text(width=None),
            "",
            *textwrap.wrap(
                f"{recommendation} {self.method}: {_gain_sentence(comparison, self.method)}", TERMINAL_CHARS
            ),
            *textwrap.wrap(
                f"Exported, loaded, and used on {new_count} answers to other questions, to which nothing was fitted "
                "and on "
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
        """Returns the lines of a table of flagged and kept answers with the truth.

        The lines below the table say how many wrong answers were found and how many right ones were lost.
        """
        shown, (common_prefix, common_suffix) = (
            self.used.shown(),
            common_ends([answer.question for answer in self.used.answers]),
        )
        question_column = f"{common_prefix}...{common_suffix}" if common_prefix or common_suffix else "question"
        rows = [
            [
                "FLAG" if answer.flagged else "keep",
                f"{answer.score:.2f}",
                "right" if answer.right else "wrong",
                _shorten(answer.question[len(common_prefix) : len(answer.question) - len(common_suffix)]),
                _shorten(answer.answer),
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
    """Returns the item's keys: its group, and its normalised text if there is one. Equal keys mean equal questions."""
    question_text = " ".join(" ".join((item.question, *item.choices, *item.fields.values())).casefold().split())
    return [group_of(item), *[question_text] * bool(item.question.strip())]


def common_ends(texts: Sequence[str]) -> tuple[str, str]:
    """Returns the common prefix and suffix of all texts, in whole words; both empty if a text has nothing else."""
    words = [text.split(" ") for text in texts]
    prefix = " ".join(_common_first_words(words))
    suffix = " ".join(reversed(_common_first_words([list(reversed(word_list)) for word_list in words])))
    prefix, suffix = f"{prefix} " if prefix else "", f" {suffix}" if suffix else ""
    return (prefix, suffix) if all(len(text) > len(prefix) + len(suffix) for text in texts) else ("", "")


def _common_first_words(texts: Sequence[Sequence[str]]) -> list[str]:
    """Returns the words that all texts begin with."""
    shared = itertools.takewhile(lambda words: len(set(words)) == 1, zip(*texts, strict=False))
    return [words[0] for words in shared]


def short_rows(comparison: Comparison) -> list[list[str]]:
    """Returns the rows of the short table: explicit, free and implicit signals, each with its AUROC and interval."""
    by_name = {method.name: method for method in comparison.methods}
    strongest = comparison.controls[0]
    needs = dict(NEEDS_OF_METHOD)
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

    Raises `RecordError` if the checkpoint judges none of them, and if the judged answers are all right or all wrong.
    """
    loaded = load_checkpoint(checkpoint)
    kind = loaded.manifest.kind
    reader_of_kind: Mapping[str, Callable[[Checkpoint], Any]] = {"text": TextReader, "hidden": HiddenProbe.of}
    predictor: Callable[[Checkpoint], Any] = QualityPredictor.of
    reader = reader_of_kind.get(kind, predictor)(loaded)
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
    """Returns the recommended method if there is a checkpoint of it; else the headline method."""
    advised = recommended(comparison)
    if advised is not None and comparison.exported:
        return advised
    return next(method for method in comparison.methods if method.name == comparison.headline)


def _gain_sentence(comparison: Comparison, name: str) -> str:
    """Returns sentences on the method's gain over the strongest simple control, with its interval."""
    method = next(method for method in comparison.methods if method.name == name)
    comparison_of_controls = method.controls_on_equal_terms
    if comparison_of_controls is None:
        return "no learned method is shown to beat it."
    gain, strongest_control = (
        comparison_of_controls.strongest.difference,
        describe_control(comparison_of_controls.strongest.name),
    )
    count = len(comparison_of_controls.controls)
    gain_clause = (
        f"{format_interval(gain, signed=True)} AUROC over {strongest_control}, the strongest of {count} controls."
    )
    return f"{gain_clause} It is shown to beat {count - len(comparison_of_controls.standing)} of them."


def _shorten(text: str) -> str:
    """Returns the text on one line, of at most `SHOWN_CHARS` characters."""
    text = " ".join(text.split())
    return text if len(text) <= SHOWN_CHARS else f"{text[: SHOWN_CHARS - 3]}..."


def _percent(share: Metric) -> str:
    """Returns a share with its interval, in percent."""
    return f"{share.estimate:.0%} [{100 * share.low:.0f}, {100 * share.high:.0f}]"
