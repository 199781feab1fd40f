"""Each script that writes blocks of the docs, with changes of its figures that must change the blocks."""

import dataclasses
import importlib
import json
import re
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))  # which are imported by their names

MEASURED = ROOT / "docs" / "measured"
Change = Callable[[pytest.MonkeyPatch, ModuleType, Path], None]
"""Gives a script other figures: (patch, the script, an empty folder)."""


@dataclasses.dataclass(frozen=True)
class Writer:
    """A command, and what it writes."""

    script: str
    blocks: dict[str, Change]
    """PAGE#NAME -> what makes its figures others. All the changes of a script are made at once."""
    command: str = "page_command"
    arguments: tuple[Any, ...] = ()


def number(constant: str, file: str, *place: str | int, to: Any = None, owner: str = "") -> Change:
    """A change of one figure of docs/measured, `to` something or a little; `constant` is the script's name for the file
    or the folder, `owner` the module that has it where the script does not."""

    def change(patch: pytest.MonkeyPatch, script: ModuleType, folder: Path) -> None:
        if not (folder / "measured").exists():
            shutil.copytree(MEASURED, folder / "measured")
        path = folder / "measured" / f"{file}.json"
        figures = json.loads(path.read_text(encoding="utf-8"))
        *way, last = place
        inside = figures
        for step in way:
            inside = inside[step]
        inside[last] = moved(inside[last]) if to is None else to
        path.write_text(json.dumps(figures), encoding="utf-8")
        module = importlib.import_module(owner) if owner else script
        kept = getattr(module, constant)
        if kept.is_relative_to(MEASURED):
            patch.setattr(module, constant, folder / kept.relative_to(MEASURED.parent))

    return change


def moved(figure: float | str) -> float | str:
    """A figure that is another at every rounding; of one that is kept as text, the first digit is."""
    if isinstance(figure, str):
        return re.sub(r"\d", lambda digit: str((int(digit[0]) + 1) % 10), figure, count=1)
    return figure + 7 if isinstance(figure, int) else 1.1 * figure + 0.123


def one_system_less(patch: pytest.MonkeyPatch, script: ModuleType, folder: Path) -> None:
    patch.setattr(script, "SYSTEMS", dict(list(script.SYSTEMS.items())[1:]))


def another_checkpoint(patch: pytest.MonkeyPatch, script: ModuleType, folder: Path) -> None:
    """One that has learned from one answer more."""
    load = script.load_checkpoint

    def other(path: Path) -> SimpleNamespace:
        manifest = load(path).manifest
        more = dataclasses.replace(manifest.training, n=manifest.training.n + 1)
        return SimpleNamespace(manifest=dataclasses.replace(manifest, training=more))

    patch.setattr(script, "load_checkpoint", other)


probes, routing = partial(number, "FIGURES", "probes"), partial(number, "KEPT", "routing")


def kept_right(patch: pytest.MonkeyPatch, script: ModuleType, folder: Path) -> None:
    """The draws of labels find another share of right answers among the kept ones."""
    other = {**script.label_draws(), "right_among_kept": 0.5}
    patch.setattr(script, "label_draws", lambda: other)


hero = number("MEASURED", "hero", "curves", "stated", "bins", -1, "right", 0)
live = number("FIGURES", "live_signals", "rows", 0, "accuracy", "value", 0)
states = partial(number, "MEASURED", "states")
PLACES, LARGER = "smollm2-135m/places", "qwen-coder-1.5b/places"
LARGE_DEBATES = ("debates/qwen-coder-1.5b", "texts", "not critical, program")
EYES, PICTURES = "qwen-coder-0.5b|arithmetic|smollm2-135m", "research.pictures"
WRITERS = (
    Writer(
        "research/hidden/adapter.py",
        {"docs/research/tables/probes.md#adapter": number("ADAPTER", "adapter", "qwen-coder-0.5b/places", "minutes")},
    ),
    Writer(
        "research/decisions/text.py",
        {
            "docs/tables/text.md#text-ladder": number(
                "MEASURED", "text_reader", "TruthfulQA, true", "auroc", "words", 0
            ),
            "docs/text.md#text-states": number(
                "MEASURED", "text_reader", "LEAF essays, clear topic", "ladder", "over_stronger", 0
            ),
        },
    ),
    Writer(
        "research/decisions/few.py",
        {
            "docs/tables/text.md#text-few": number(
                "MEASURED", "text_few", "TruthfulQA, true", "100", "auroc", "words", 0
            ),
        },
    ),
    Writer(
        "research/decisions/rubric.py",
        {
            "docs/research/rubric.md#rubric-answer": number(
                "MEASURED", "rubric", "real", "text", "rmse", "constant", 0
            ),
            "docs/research/tables/rubric.md#rubric": number(
                "MEASURED", "rubric", "real", "text", "rmse", "rater's mean alone", 0
            ),
        },
    ),
    Writer(
        "research/decisions/lines.py",
        {"docs/text.md#decision-lines": number("MEASURED", "decision_lines", "line", "answers", 2, "score")},
    ),
    Writer(
        "research/decisions/served.py",
        {
            "docs/research/rubric.md#learned": number(
                "MEASURED", "served_decisions", "learned", "synthetic", "auroc", 0
            ),
            "docs/text.md#speed": number("MEASURED", "served_decisions", "speed", "1", "p50_ms"),
        },
    ),
    Writer(
        "research/debates/page.py",
        {
            f"docs/research/{block}": number(
                "MEASURED", "judges", store, "targets", target, "methods", method, "auroc", 0
            )
            for store, block, target, method in (
                ("debates/qwen-coder-1.5b", "judges.md#answer", "not critical, program", "terms, first 30 tokens"),
                ("asap-debate-scaffold", "judges.md#judges-stores", "not critical, program", "judge as text"),
                ("asap-debate-scaffold", "tables/judges.md#verdict", "not critical, program", "judge as text"),
                ("asap-debate-scaffold", "tables/judges.md#judges-all", "quotes exactly, program", "judge as text"),
                (
                    "asap-debate-scaffold",
                    "tables/judges.md#judges-text",
                    "evidence 3, text judge",
                    "terms, whole argument",
                ),
                (
                    "asap-debate-scaffold",
                    "tables/judges.md#judges-windows",
                    "not critical, program",
                    "terms, first 3 tokens",
                ),
                (
                    "asap-debate-scaffold",
                    "tables/judges.md#judges-held",
                    "quotes exactly, program",
                    "terms, whole argument",
                ),
            )
        }
        | {
            f"docs/research/tables/judges.md#{block}": number("MEASURED", "judges", *LARGE_DEBATES, *figure)
            for block, figure in (
                ("judges-read", ("methods", "words and terms", "auroc", 0)),
                ("judges-curve", ("curve", "300", "words and terms", "all_ahead", 0)),
            )
        },
    ),
    Writer(
        "research/quality/bundled.py",
        {
            "docs/research/travel.md#bundled-controls": number("MEASURED", "bundled_controls", "pooled", "estimate"),
            "docs/research/tables/travel.md#bundled-every-control": number(
                "MEASURED", "bundled_controls", "within", "controls", "mean log-probability", "estimate"
            ),
        },
    ),
    Writer(
        "research/quality/equal_terms.py",
        {
            "docs/research/ladder.md#equal-terms": number(
                "FIGURES", "equal_terms", "sets", "creak-metacrit", "pooled", "gain", to=[-0.5, -0.6, -0.4]
            ),
            "docs/research/tables/ladder.md#equal-terms-all": number(
                "FIGURES", "equal_terms", "sets", "creak-metacrit", "n"
            ),
            "docs/research/tables/ladder.md#worlds": number(
                "FIGURES", "equal_terms", "planted", "noise, 300 answers", "auroc"
            ),
        },
    ),
    Writer(
        "research/quality/bar.py",
        {
            "docs/research/ladder.md#bar": number(
                "FIGURES", "bar", "sets", "creak-metacrit", "rules", "84 %", "log_loss", to=0.9
            ),
            "docs/research/tables/ladder.md#bar-rules": number(
                "FIGURES", "bar", "sets", "creak-metacrit", "rules", "99 %", "log_loss", to=0.9
            ),
        },
    ),
    Writer(
        "research/quality/few_questions.py",
        {
            "docs/train.md#questions": number(
                "KEPT", "few_questions", "correct, 100 x 3", "1.5B coder, GSM8K", "trust", "invalid"
            ),
        },
    ),
    Writer(
        "research/travel/page.py",
        {
            "docs/train.md#labels": number("MEASURED", "travel", "curve", "counts", "50", "trained", "auroc"),
            "docs/research/travel.md#travel-answer": number(
                "MEASURED", "travel", "strangers", "model_left_out", "numbers", "mean", "gain", 0
            ),
            "docs/research/travel.md#travel-strangers": number("MEASURED", "travel", "strangers", "answers"),
            "docs/research/tables/travel.md#travel-numbers": number(
                "MEASURED", "travel", "strangers", "task_left_out", "numbers", "mean", "auroc"
            ),
            "docs/research/tables/travel.md#travel-sets": number("MEASURED", "travel", "strangers", "rows", 0, "ece"),
            "docs/research/tables/travel.md#travel-curve": number("MEASURED", "travel", "curve", "answers"),
            "docs/research/tables/travel.md#travel-samples": number(
                "MEASURED", "travel", "samples", "qwen-coder-0.5b, all", "answers"
            ),
        },
    ),
    Writer(
        "research/writing/study_page.py",
        {
            "docs/research/tables/writing-assistant.md#study-simulated": number(
                "MEASURED", "study", "rows", 0, "share_held"
            ),
            "docs/research/tables/writing-assistant.md#study-paper": number(
                "MEASURED", "study", "participants", "critical_thinking"
            ),
        },
        "write_page",
    ),
    Writer(
        "research/engines/vllm_page.py",
        {
            "docs/tables/engines.md#vllm-server": number("MEASURED", "vllm_server", "answers"),
            "docs/tables/engines.md#vllm-rates": number("MEASURED", "vllm_rates", "ratio"),
            "docs/tables/engines.md#vllm-async": number("MEASURED", "vllm_rates", "asynchronous", "ratios", 0, to=9.0),
            "docs/tables/engines.md#vllm-states": number("MEASURED", "vllm_states", "calls"),
            "docs/tables/engines.md#many-machines": number("MEASURED", "many_machines", "tokens_per_call"),
            "docs/tables/import.md#import-large": number("MEASURED", "import_large", "lines"),
            "docs/research/speed.md#vllm-proxy": number("MEASURED", "vllm_proxy", "rounds"),
        },
        "main",
    ),
    Writer(
        "research/engines/changes.py",
        {"docs/tables/adapt.md#same-questions": number("MEASURED", "changes", "learned")},
        "write_page",
    ),
    Writer(
        "research/where_it_loses.py",
        {"docs/where-it-loses.md#where-it-loses": number("MEASURED", "other_eyes", EYES, "gap", 0, owner=PICTURES)},
        "main",
    ),
    Writer(
        "research/which_signal.py",
        {
            "docs/streams.md#looks": number(
                "MEASURED",
                "gate",
                "SmolLM2-135M, MetaCog-Eval, 700 items",
                "report",
                "looks",
                0,
                "gain",
                "low",
                owner=PICTURES,
            ),
            "docs/choose.md#which-signal": number("MEASURED", "capture", "4 layers", "time", owner=PICTURES),
            "README.md#situations": number(
                *("MEASURED", "no_labels", "stores", "0.5B coder, GSM8K", "ways", "scaled", "all"), owner=PICTURES
            ),
            "README.md#gain": kept_right,
        },
        "main",
    ),
    Writer(
        "research/engines/other_eyes.py",
        {
            "docs/tables/engines.md#other-eyes": number(
                "MEASURED", "other_eyes", "qwen-coder-0.5b|places|smollm2-135m", "own"
            )
        },
        "write_page",
    ),
    Writer(
        "research/loop/page.py",
        {
            "docs/research/loop.md#loop-answer": number(
                "MEASURED", "loop", "drift", "rows", 0, "ways", "ks", "false_alarms"
            ),
            "docs/research/tables/loop.md#loop-coverage": number("MEASURED", "loop", "estimates", "replays"),
            "docs/research/tables/loop.md#loop-sheets": number("MEASURED", "loop", "estimates", "sheets", 0, "of"),
            "docs/research/tables/loop.md#loop-groups": number("MEASURED", "loop", "estimates", "grouped", 0, "times"),
            "docs/research/tables/loop.md#loop-spared": number(
                "MEASURED", "loop", "estimates", "spared", 0, "squared_correlation"
            ),
            "docs/research/tables/loop.md#loop-recalibration": number("MEASURED", "loop", "recalibration", "draws"),
            "docs/research/tables/loop.md#loop-drift": number("MEASURED", "loop", "drift", "before"),
        },
    ),
    Writer(
        "research/before/measure.py",
        {
            "docs/research/before.md#answer": number(
                "KEPT", "before", "tasks", "places", "labels", "200", "qwen-coder-0.5b", "auroc", "states", to=0.99
            ),
            "docs/research/before.md#rows": number(
                "KEPT", "before", "tasks", "places", "labels", "200", "qwen-coder-0.5b", "auroc", "TF-IDF"
            ),
            "docs/research/tables/before.md#rows-all": number(
                "KEPT", "before", "tasks", "places", "labels", "200", "qwen-coder-0.5b", "auroc", "TF-IDF"
            ),
            "docs/research/before.md#foreign": number("KEPT", "before", "tasks", "places", "foreign", "CREAK", to=0.1),
            "docs/research/before.md#further": number(
                "STEP_FIGURES",
                "before_surface",
                "tasks",
                "places",
                "labels",
                "200",
                "qwen-coder-0.5b",
                "auroc",
                "TF-IDF",
                to=0.99,
            ),
            "docs/research/before.md#cost": number("SPEED", "reader_speed", "layers", "18", "processor_ms"),
        },
        "page",
    ),
    Writer(
        "research/before/intervals.py",
        {
            "docs/research/before.md#intervals": number(
                "KEPT", "before_intervals", "worlds", "linear, 200 labels", 0, "held", to=0.5
            ),
            "docs/research/tables/before.md#interval-worlds": number(
                "KEPT", "before_intervals", "worlds", "steps, 1000 labels", 0, "width", to=0.9
            ),
        },
    ),
    Writer(
        "research/before/choice.py",
        {
            "docs/research/before.md#targets": number(
                "KEPT",
                "before_choice",
                "sets",
                "router_cascade9",
                "splits",
                0,
                "targets",
                "0.25",
                "cost",
                to=9.0,
            ),
            "docs/research/tables/before.md#calibration-sets": number(
                "KEPT", "before_choice", "sets", "router_cascade9", "splits", 0, "ece", 0, to=0.9
            ),
            "docs/research/tables/before.md#target-sets": number(
                "KEPT", "before_choice", "sets", "router_llmrouter9", "splits", 0, "targets", "0.5", "target", to=0.1
            ),
        },
    ),
    Writer(
        "research/before/half.py",
        {
            "docs/research/before.md#half": number(
                "KEPT", "before_half", "places, 200 labels", "over TF-IDF", "states", 0, to=9.0
            ),
            "docs/research/tables/before.md#half-rows": number(
                "KEPT", "before_half", "places, 200 labels", "over TF-IDF", "surface", 0, to=9.0
            ),
        },
        "page",
    ),
    Writer(
        "research/agreement/measure.py",
        {
            "docs/research/no-labels.md#answer": number(
                "KEPT",
                "no_labels",
                "stores",
                "0.5B coder, GSM8K",
                "over",
                "agreement, 100 x 2",
                "50 labels",
                "all",
                0,
                to=-0.9,
            ),
            "docs/research/tables/no-labels.md#rows": number(
                "KEPT", "no_labels", "stores", "0.5B coder, GSM8K", "right"
            ),
            "docs/research/no-labels.md#goals": number(
                "KEPT",
                "no_labels",
                "stores",
                "0.5B coder, GSM8K",
                "over",
                "agreement, 100 x 2",
                "strongest free number",
                "all",
                0,
                to=-0.8,
            ),
            "docs/research/ladder.md#few": number(
                "KEPT", "no_labels", "stores", "0.5B coder, GSM8K", "ways", "50 labels", "all", to=0.1
            ),
            "docs/research/tables/no-labels.md#counts": number(
                "KEPT",
                "no_labels",
                "stores",
                "0.5B coder, GSM8K",
                "over",
                "agreement, 50 x 4",
                "50 labels",
                "all",
                0,
                to=-0.8,
            ),
            "docs/research/no-labels.md#scale": number(
                "KEPT", "no_labels", "stores", "1.5B coder, GSM8K", "calibration", "agreement, 100 x 2", "ece", to=0.9
            ),
            "docs/research/no-labels.md#again": number(
                "KEPT", "no_labels", "stores", "0.5B coder, GSM8K", "same_again", "wrong", to=0.01
            ),
            "docs/research/tables/no-labels.md#settings": number(
                "KEPT", "no_labels", "stores", "0.5B coder, GSM8K", "ways", "agreement, 100 x 2, all terms", "all"
            ),
            "docs/research/tables/no-labels.md#ways": number(
                "KEPT", "no_labels", "stores", "0.5B coder, GSM8K", "ways", "mean", "all"
            ),
            "docs/research/tables/no-labels.md#over": number(
                "KEPT", "no_labels", "stores", "0.5B coder, GSM8K", "over", "agreement, 100 x 2", "25 labels", "all", 0
            ),
            "docs/research/tables/no-labels.md#over-ended": number(
                "KEPT",
                "no_labels",
                "stores",
                "0.5B coder, GSM8K",
                "over",
                "agreement, 100 x 2",
                "25 labels",
                "ended",
                0,
            ),
            "docs/research/tables/no-labels.md#calibration": number(
                "KEPT", "no_labels", "stores", "0.5B coder, GSM8K", "calibration", "agreement, 50 x 4", "brier_skill"
            ),
            "docs/research/tables/no-labels.md#cost": number(
                "KEPT", "no_labels", "stores", "0.5B coder, GSM8K", "tokens"
            ),
        },
        "page",
    ),
    Writer(
        "research/agreement/joined.py",
        {
            "docs/research/no-labels.md#joined": number(
                "KEPT",
                "no_labels_joined",
                "stores",
                "0.5B coder, GSM8K",
                "over",
                "agreement and 25 labels",
                "25 labels",
                "all",
                0,
                to=-0.9,
            ),
            "docs/research/tables/no-labels.md#chosen": number(
                "KEPT", "no_labels_joined", "stores", "0.5B coder, GSM8K", "chosen", "20, by chance", to=0.9
            ),
            "docs/research/tables/no-labels.md#joined-rows": number(
                "KEPT", "no_labels_joined", "stores", "0.5B coder, GSM8K", "tokens"
            ),
        },
        "page",
    ),
    Writer(
        "research/agreement/states.py",
        {
            "docs/research/no-labels.md#states": number(
                "KEPT",
                "no_labels",
                "states",
                "0.5B coder, places",
                "over",
                "states taught by agreement",
                "log-probabilities taught by agreement",
                0,
                to=-0.8,
            ),
            "docs/research/tables/no-labels.md#states-rows": number(
                "KEPT", "no_labels", "states", "0.5B coder, places", "ways", "scaled", to=0.1
            ),
            "docs/research/tables/no-labels.md#states-ways": number(
                "KEPT", "no_labels", "states", "0.5B coder, places", "ways", "mean", to=0.1
            ),
            "docs/research/tables/no-labels.md#states-over": number(
                "KEPT",
                "no_labels",
                "states",
                "0.5B coder, places",
                "over",
                "states taught by agreement",
                "scaled",
                0,
                to=-0.8,
            ),
        },
        "page",
    ),
    Writer(
        "research/panel/same.py",
        {
            "docs/research/panel.md#beside": number(
                "KEPT",
                "panel_same",
                "samples of the 0.5B coder, places",
                "ways",
                "text without the question's words",
                "joint",
                "over_text",
                0,
                to=0.9,
            ),
            "docs/research/tables/panel.md#same": number(
                "KEPT", "panel_same", "three agents on MetaCog-Eval", "ways", "words", "majority", "accuracy"
            ),
        },
        "page",
    ),
    Writer(
        "research/panel/measure.py",
        {
            "docs/research/panel.md#answer": number(
                "KEPT", "panel", "samples", "0.5B coder, GSM8K", "sizes", "8", "ece", 0, to=0.9
            ),
            "docs/research/panel.md#samples": number(
                "KEPT", "panel", "samples", "0.5B coder, GSM8K", "accuracy_of_one"
            ),
            "docs/research/tables/panel.md#picks": number(
                "KEPT", "panel", "samples", "0.5B coder, GSM8K", "sizes", "4", "ece", 0
            ),
            "docs/research/tables/panel.md#stops": number(
                "KEPT", "panel", "samples", "0.5B coder, GSM8K", "budgets", "4", "panel"
            ),
            "docs/research/panel.md#field": number(
                "KEPT", "panel", "samples", "0.5B coder, GSM8K", "field", "stops", "Beta 0.95", "saved", 0, to=0.9
            ),
            "docs/research/tables/panel.md#votes": number(
                "KEPT", "panel", "samples", "0.5B coder, GSM8K", "field", "picks", "4", "mean, all", 0
            ),
            "docs/research/tables/panel.md#saved": number(
                "KEPT", "panel", "samples", "0.5B coder, GSM8K", "field", "stops", "panel", "tokens"
            ),
            "docs/research/tables/panel.md#agents": number("KEPT", "panel", "agents", "metacog-every-agent", "ece", 0),
        },
        command="page",
    ),
    Writer(
        "research/panel/tokens.py",
        {
            "docs/research/panel.md#tokens": number(
                "KEPT", "panel_tokens", "0.5B coder, GSM8K", "equal_accuracy", "ways", "panel", "saved", 0, to=0.9
            ),
            "docs/research/tables/panel.md#equal": number(
                "KEPT", "panel_tokens", "0.5B coder, GSM8K", "equal_accuracy", "tokens"
            ),
        },
        command="page",
    ),
    Writer(
        "research/demo/page.py",
        {
            "docs/research/demo.md#answer": number("FIGURES", "demo", "default", "flags", "found"),
            "docs/research/demo.md#flags": number("FIGURES", "demo", "default", "clock_s", "answers"),
            "docs/research/demo.md#not-shown": number("FIGURES", "demo", "default", "methods", 16, "auroc"),
            "README.md#demo": number("FIGURES", "demo", "default", "flags", "table", to=["FLAG"]),
            "docs/research/tables/demo.md#demo-results": number(
                "FIGURES", "demo", "default", "accuracy", 0, "accuracy"
            ),
        },
    ),
    Writer("research/hero/figure.py", {"docs/index.md#hero": hero}, "main"),
    Writer(
        "research/production/decisions.py",
        {"docs/research/tables/speed.md#served-decisions": number("FIGURES", "decisions", "sets", 0, "ece", 0)},
    ),
    Writer(
        "research/production/gate_ended.py",
        {
            "docs/research/gate.md#gate-ended": number(
                "FIGURES", "gate_ended", "gsm8k-cot, answer, 256", "question", "0.1", "tokens_saved", 0, to=0.99
            ),
            "docs/research/tables/gate.md#gate-ended-stores": number(
                "FIGURES", "gate_ended", "gsm8k-cot, answer, 256", "cut_tokens"
            ),
            "docs/research/tables/gate.md#gate-ended-looks": number(
                "FIGURES", "gate_ended", "gsm8k-cot, answer, 256", "looks", 0, "cut"
            ),
        },
    ),
    Writer(
        "research/production/gate.py",
        {
            "docs/research/tables/gate.md#gate": number(
                "FIGURES", "gate", "SmolLM2-135M, MetaCog-Eval, 700 items", "report", "looks", 0, "auroc", "low"
            ),
            "docs/research/gate.md#gate-answer": number(
                *("FIGURES", "gate", "SmolLM2-135M, MetaCog-Eval, 700 items", "report", "looks", 0, "gain", "low"),
                to=0.9,
            ),
            "docs/research/gate.md#promise": number(
                *("PROMISE", "gate_promise", "Qwen2.5-Coder-1.5B, GSM8K, 1,000 problems with working"),
                *("first fold", "mean_allowed"),
                to=0.05,
            ),
            "docs/research/tables/gate.md#promise-splits": number(
                *("PROMISE", "gate_promise", "Qwen2.5-Coder-1.5B, GSM8K, 1,000 problems with working"),
                *("first fold", "mean_allowed"),
                to=0.05,
            ),
            "docs/research/gate.md#question": number(
                *("FIGURES", "gate", "Qwen2.5-Coder-1.5B, GSM8K, 1,000 problems with working"),
                *("without_question", "0.1", "bad", 0),
            ),
        },
    ),
    Writer(
        "research/hidden/headline.py",
        {
            "docs/research/tables/probes.md#rows": probes(PLACES, "methods", "blend", "auroc", 0),
            "docs/research/probes.md#answer": probes(PLACES, "methods", "blend", "auroc", 0, to=0.1),
            "docs/research/tables/probes.md#headline": probes(PLACES, "methods", "blend", "auroc", 0),
        },
        "main",
    ),
    Writer(
        "research/states/page.py",
        {
            "docs/research/probes.md#larger": states("answers", LARGER, "methods", "blend", "auroc", 0),
            "docs/research/tables/probes.md#curve": states("answers", LARGER, "methods", "blend", "auroc", 0),
            "docs/research/tables/probes.md#selective": states("answers", LARGER, "methods", "blend", "error_fall", 0),
            "docs/research/tables/probes.md#difficulty": states(
                "difficulty", f"{LARGER}-samples", "methods", "probe", "spearman", 0
            ),
        },
        "main",
    ),
    Writer(
        "research/states/gate.py",
        {
            "docs/research/gate.md#gate-states": number(
                "FIGURES", "gate_states", "0.5B coder, samples", "right", to=0.5
            ),
            "docs/research/tables/gate.md#gate-kept": number(
                "FIGURES", "gate_states", "0.5B coder, samples", "looks", 4, "kept", "gate", "saved"
            ),
            "docs/research/tables/gate.md#gate-looks": number(
                "FIGURES", "gate_states", "0.5B coder, samples", "looks", 0, "auroc", "states", 0
            ),
        },
    ),
    Writer(
        "research/states/gate_tokens.py",
        {
            "docs/research/gate.md#gate-tokens": number(
                "FIGURES", "gate_tokens", "135M, factual QA", "more_than_question", 0
            ),
            "docs/research/tables/gate.md#gate-tokens-ways": number(
                "FIGURES", "gate_tokens", "135M, factual QA", "states", "tokens_saved", 0
            ),
        },
    ),
    Writer(
        "research/states/check_page.py",
        {
            "docs/research/states.md#answer": number("MEASURED", "states_check", "honest", "requests"),
            "docs/research/tables/states.md#faults": number("MEASURED", "states_check", "faults", "none", "head"),
            "docs/research/states.md#honest": number("MEASURED", "states_check", "honest", "batches", 0, "worst"),
            "docs/research/states.md#vllm": number("MEASURED", "states_vllm", "relative", "requests"),
            "docs/research/tables/states.md#vllm-faults": number(
                "MEASURED", "states_vllm", "faults", "none", "head", "nats"
            ),
            "docs/research/tables/states.md#vllm-layers": number("MEASURED", "states_vllm", "by_layer", 6, 0),
        },
    ),
    Writer(
        "research/systems/live_signals.py", {"docs/systems.md#live": live, "docs/research/tables/systems.md#live": live}
    ),
    Writer(
        "benchmarks/page.py",
        {
            "docs/research/speed.md#answer": number("MEASURED", "peers", "rows", 0, "ratio", to=0.5),
            "docs/research/tables/speed.md#tables": number("MEASURED", "peers", "rows", 0, "ratio"),
        },
    ),
    Writer(
        "research/hidden/measure.py",
        {
            "docs/research/tables/probes.md#setting": probes(PLACES, "tokens"),
            "docs/research/tables/probes.md#discrimination": probes(PLACES, "methods", "length", "auroc", 0),
            "docs/research/tables/probes.md#calibration": probes(PLACES, "methods", "blend", "aurc", 0),
            "docs/research/tables/probes.md#kinds": probes(PLACES, "selected", "hidden probe, answer"),
            "docs/research/tables/probes.md#efficiency": number(
                *("LARGER", "states", "efficiency", "qwen-coder-1.5b/creak", "methods", "P(true)", "meta_d", 0),
                owner="research.hidden.controls",
            ),
            "docs/research/tables/probes.md#speed": number("FIGURES", "capture", "all layers", "time"),
        },
    ),
    Writer(
        "research/production/page.py",
        {"docs/research/tables/speed.md#speed": number("MEASURED", "serving", "rows", 0, "upstream_cpu_ms")},
        "main",
    ),
    Writer(
        "benchmarks/fuzz_serving.py",
        {"docs/research/tables/speed.md#soak": number("FIGURES", "soak", "hostile")},
        "write_page",
    ),
    Writer(
        "benchmarks/fuzz_logs.py",
        {"docs/tables/import.md#fuzz-logs": number("FIGURES", "fuzz_logs", "readers", 0, "refused")},
        "write_page",
    ),
    Writer(
        "research/quality/measure.py",
        {
            f"docs/research/{block}": number("FIGURES", "quality", "sets", "gsm8k_token_entropy", *place, to=to)
            for block, place, to in (
                *(
                    (block, ("methods", "LightGBM on logprobs", key, at), -0.3)
                    for block, key, at in (
                        ("quality.md#answer", "over_mean", 1),
                        ("tables/quality.md#sets", "auroc", 0),
                        ("tables/quality.md#says", "over_mean", 1),
                        ("tables/quality.md#tables", "auroc", 0),
                    )
                ),
                ("tables/quality.md#setting", ("n",), None),
                ("tables/quality.md#early", ("early", "early_over_full", 0), None),
                ("tables/quality.md#shape", ("trajectory", "level start", 0), None),
                ("tables/quality.md#seen", ("prefix", "10", "trees", 0), None),
            )
        },
    ),
    Writer(
        "research/papers/page.py",
        {
            "docs/research/tables/systems.md#tables": number(
                "FIGURES", "reproduction", "metacogagent", "figures", -1, "here", 0
            ),
            "docs/research/tables/systems.md#documents": number(
                "FIGURES", "reproduction", "metacogagent", "model", to="another"
            ),
            **{
                f"docs/research/{block}": number(
                    "FIGURES", "reproduction", "monitor_generate_verify", "figures", 13, "sign", to=0
                )
                for block in (
                    "systems.md#answer",
                    "systems.md#verdicts",
                    "tables/systems.md#directions",
                )
            },
        },
        "write_page",
    ),
    Writer(
        "research/routing/measure.py",
        {
            "docs/route.md#routing": routing("router_cascade9, 200 labels", "rows", 0, "word", to="behind"),
            "docs/several-answers.md#spent": routing(
                "router_cascade9, 200 labels", "rows", 0, "stream", "cost", to=9.0
            ),
            "docs/research/routing.md#budgets": routing("router_cascade9, 200 labels", "rows", 0, "after", "said", 0),
            "docs/research/tables/routing.md#spending": routing(
                "router_cascade9, 200 labels", "rows", 0, "stream", "cost"
            ),
            "docs/research/routing.md#answer": routing("router_cascade9, 200 labels", "rows", 0, "word", to="behind"),
            "docs/research/routing.md#shared": routing("metacog-every-agent, 200 labels", "group_learned", 0, to=0.1),
            "docs/research/routing.md#areas": routing("router_cascade9, 200 labels", "rows", 0, "word", to="behind"),
            "docs/research/tables/routing.md#sets": routing(
                "router_cascade9, 200 labels", "rows", 0, "accuracy", "panel", 0
            ),
        },
        "page",
    ),
    Writer(
        "research/routing/streams.py",
        {
            "docs/research/routing.md#streams": number(
                "KEPT", "routing_streams", "recorded", "mmlu_pro, token, 0.5, 1", "parts", 0, to=0.5
            ),
        },
        "page",
    ),
    Writer(
        "research/systems/page.py",
        {
            "docs/tables/systems.md#systems": one_system_less,
            "docs/tables/systems.md#options": one_system_less,
            "docs/research/tables/systems.md#caelf": number("CONTESTED", "contested", 0, 2),
        },
        "main",
        (None,),
    ),
    Writer(
        "research/writing/measure.py",
        {
            "docs/research/writing-assistant.md#writing-answer": number(
                "FIGURES", "writing", "cases", "smollm2-135m", "metacrit", "read"
            ),
            "docs/research/tables/writing-assistant.md#writing-cost": number(
                "FIGURES", "writing", "cases", "smollm2-135m", "single", "read"
            ),
            "docs/research/tables/writing-assistant.md#writing-heads": number(
                "HEADS", "writing_heads", "stage", "words", 0
            ),
            "docs/research/tables/writing-assistant.md#writing-orders": number(
                "FIGURES", "writing", "orders", "smollm2-135m", "harmless", "texts"
            ),
        },
        "write_page",
    ),
    Writer("research/stores/bundle.py", {"docs/research/tables/travel.md#bundled": another_checkpoint}, "write_table"),
    Writer(
        "scripts/stranger.py",
        {"docs/start.md#stranger": number("MEASURED", "stranger", "steps", 0, "cpu_s")},
        "write_page",
    ),
)
