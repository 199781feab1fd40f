"""The only names of the core that `production` and `papers` may import.

`scripts/house.py` counts these names and refuses any other import of the core by a house. A module is imported when one
of its names is first used, so nobody waits for unused ones.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metaprobe.checkpoints import Checkpoint, CheckpointError, ContractMismatch, FlagOptions, load_checkpoint
    from metaprobe.checkpoints.checkpoint import load_verified
    from metaprobe.checkpoints.files import bundled_digests
    from metaprobe.checkpoints.flagging import AGREEMENT
    from metaprobe.checkpoints.options import Option, options_of, split_name
    from metaprobe.eval.metrics.bias import ambiguous_bias_score, bias_score
    from metaprobe.eval.metrics.bootstrap import Interval, cluster_weights, interval, mean_interval, wilson
    from metaprobe.eval.metrics.ranked import quadratic_weighted_kappa
    from metaprobe.eval.results import plain
    from metaprobe.eval.systems.dispatch import DispatchedRun
    from metaprobe.eval.systems.system_figures import system_figures
    from metaprobe.llms.base import LLM, LLMError, Request
    from metaprobe.llms.cache import CachedLLM, CallCache
    from metaprobe.llms.extract import CallSelection
    from metaprobe.llms.model_name import ModelName, api_options
    from metaprobe.llms.pricing import Price
    from metaprobe.option_commands import AsJson, CheckpointOut, Digest, Fields, OneCheckpoint, Stores, command
    from metaprobe.probes.blend import BlendPredictor
    from metaprobe.probes.contract import OnMismatch
    from metaprobe.probes.decisions import DecisionPredictor, answers_of
    from metaprobe.probes.quality import AT_LEAST, CRITICAL_HEAD, QualityPredictor
    from metaprobe.probes.scored import OnVerdict, Scored, score_response
    from metaprobe.probes.signals import Signal, Signals
    from metaprobe.probes.source import Replacement, SignalSource
    from metaprobe.probes.text_predictor import TextAnswer, TextPredictor
    from metaprobe.probes.verbalized import parse_confidence, parse_difficulty
    from metaprobe.probes.verdict import Verdict
    from metaprobe.progress import bar_counters, progress_bar, say, steps
    from metaprobe.records.answer_stream import AnswerStream, kind_of
    from metaprobe.records.bad_lines import BadFile, reading
    from metaprobe.records.correctness import (
        canonical,
        chosen,
        final_answer,
        find_choices,
        is_correct,
        letter_options,
        most_voted,
        numbers,
        read_number,
        words,
    )
    from metaprobe.records.database import Database
    from metaprobe.records.decisions import (
        QUESTIONS_ROLE,
        DecisionQuestion,
        decision_answers,
        read_parts,
        read_questions,
    )
    from metaprobe.records.errors import ImportFileError, InvalidResponse, RecordError, StoreMismatch, Unwritable
    from metaprobe.records.extras import how_to_install, require
    from metaprobe.records.label_state import LabelWords, stated_direction, why_no_label
    from metaprobe.records.labelled_scores import LabelledScores
    from metaprobe.records.lines import is_csv, iter_csv, iter_json_lines, read_whole
    from metaprobe.records.logs.inspect_log import response_of
    from metaprobe.records.logs.sample import NoAnswer
    from metaprobe.records.one_answer import TWO_OF_ONE_INDEX
    from metaprobe.records.openai_format import failure_of
    from metaprobe.records.parse import events_as_text, parse_body, parse_chunks, parse_response
    from metaprobe.records.plugins import entry_point_names, load_plugin
    from metaprobe.records.response import ParsedResponse, ParsedText
    from metaprobe.records.segments import spoken_text
    from metaprobe.records.spelling import AT_LINE, normalize, read_int
    from metaprobe.records.spreadsheets import IdFault, list_faults
    from metaprobe.records.store import RunStore, RunWriter
    from metaprobe.records.types import (
        Call,
        Decision,
        DecisionAnswer,
        Item,
        Label,
        LogprobsMode,
        Message,
        Run,
        Sampling,
        Statement,
        Usage,
    )
    from metaprobe.records.writing import OneWriter, atomic_write
    from metaprobe.routing.gate import StreamingGate
    from metaprobe.routing.panel import Panel, PanelAnswered
    from metaprobe.routing.panel_answers import PanelAnswer, PanelStep, PanelVerdict, responses_in
    from metaprobe.routing.panel_lines import read_call
    from metaprobe.routing.paper import PaperRules
    from metaprobe.routing.policy import Action, Outcome, Policy, State, learns, make_decision, without_failed
    from metaprobe.routing.success import SuccessEstimator
    from metaprobe.routing.watch_stream import GatedAnswer, watch
    from metaprobe.terminal import command_line, say_checkpoint, shown_number, text_table
    from metaprobe.training.evidence import load_runs
    from metaprobe.training.importance import importance
    from metaprobe.training.options import (
        LEFT_OUT,
        Agent,
        Folds,
        LineOptions,
        QualityOptions,
        ReplaceOptions,
        Seed,
        Stage,
        TopLogprobs,
    )
    from metaprobe.training.recipes.all_of_runs import TrainedRuns
    from metaprobe.training.recipes.quality import train_quality
    from metaprobe.training.rescale import learned_until, recalibrate_quality, score_again
    from metaprobe.training.versions import Promotion, decide_promotion, promote, promote_panel

__all__ = [
    "AGREEMENT",
    "AT_LEAST",
    "AT_LINE",
    "CRITICAL_HEAD",
    "LEFT_OUT",
    "LLM",
    "QUESTIONS_ROLE",
    "TWO_OF_ONE_INDEX",
    "Action",
    "Agent",
    "AnswerStream",
    "AsJson",
    "BadFile",
    "BlendPredictor",
    "CachedLLM",
    "Call",
    "CallCache",
    "CallSelection",
    "Checkpoint",
    "CheckpointError",
    "CheckpointOut",
    "ContractMismatch",
    "Database",
    "Decision",
    "DecisionAnswer",
    "DecisionPredictor",
    "DecisionQuestion",
    "Digest",
    "DispatchedRun",
    "Fields",
    "FlagOptions",
    "Folds",
    "GatedAnswer",
    "IdFault",
    "ImportFileError",
    "Interval",
    "InvalidResponse",
    "Item",
    "LLMError",
    "Label",
    "LabelWords",
    "LabelledScores",
    "LineOptions",
    "LogprobsMode",
    "Message",
    "ModelName",
    "NoAnswer",
    "OnMismatch",
    "OnVerdict",
    "OneCheckpoint",
    "OneWriter",
    "Option",
    "Outcome",
    "Panel",
    "PanelAnswer",
    "PanelAnswered",
    "PanelStep",
    "PanelVerdict",
    "PaperRules",
    "ParsedResponse",
    "ParsedText",
    "Policy",
    "Price",
    "Promotion",
    "QualityOptions",
    "QualityPredictor",
    "RecordError",
    "ReplaceOptions",
    "Replacement",
    "Request",
    "Run",
    "RunStore",
    "RunWriter",
    "Sampling",
    "Scored",
    "Seed",
    "Signal",
    "SignalSource",
    "Signals",
    "Stage",
    "State",
    "Statement",
    "StoreMismatch",
    "Stores",
    "StreamingGate",
    "SuccessEstimator",
    "TextAnswer",
    "TextPredictor",
    "TopLogprobs",
    "TrainedRuns",
    "Unwritable",
    "Usage",
    "Verdict",
    "ambiguous_bias_score",
    "answers_of",
    "api_options",
    "atomic_write",
    "bar_counters",
    "bias_score",
    "bundled_digests",
    "canonical",
    "chosen",
    "cluster_weights",
    "command",
    "command_line",
    "decide_promotion",
    "decision_answers",
    "entry_point_names",
    "events_as_text",
    "failure_of",
    "final_answer",
    "find_choices",
    "how_to_install",
    "importance",
    "interval",
    "is_correct",
    "is_csv",
    "iter_csv",
    "iter_json_lines",
    "kind_of",
    "learned_until",
    "learns",
    "letter_options",
    "list_faults",
    "load_checkpoint",
    "load_plugin",
    "load_runs",
    "load_verified",
    "make_decision",
    "mean_interval",
    "most_voted",
    "normalize",
    "numbers",
    "options_of",
    "parse_body",
    "parse_chunks",
    "parse_confidence",
    "parse_difficulty",
    "parse_response",
    "plain",
    "progress_bar",
    "promote",
    "promote_panel",
    "quadratic_weighted_kappa",
    "read_call",
    "read_int",
    "read_number",
    "read_parts",
    "read_questions",
    "read_whole",
    "reading",
    "recalibrate_quality",
    "require",
    "response_of",
    "responses_in",
    "say",
    "say_checkpoint",
    "score_again",
    "score_response",
    "shown_number",
    "split_name",
    "spoken_text",
    "stated_direction",
    "steps",
    "system_figures",
    "text_table",
    "train_quality",
    "watch",
    "why_no_label",
    "wilson",
    "without_failed",
    "words",
]
_LATER = {
    "AGREEMENT": "metaprobe.checkpoints.flagging",
    "AT_LEAST": "metaprobe.probes.quality",
    "AT_LINE": "metaprobe.records.spelling",
    "Action": "metaprobe.routing.policy",
    "Agent": "metaprobe.training.options",
    "AnswerStream": "metaprobe.records.answer_stream",
    "AsJson": "metaprobe.option_commands",
    "BadFile": "metaprobe.records.bad_lines",
    "BlendPredictor": "metaprobe.probes.blend",
    "CRITICAL_HEAD": "metaprobe.probes.quality",
    "CachedLLM": "metaprobe.llms.cache",
    "Call": "metaprobe.records.types",
    "CallCache": "metaprobe.llms.cache",
    "CallSelection": "metaprobe.llms.extract",
    "Checkpoint": "metaprobe.checkpoints",
    "CheckpointError": "metaprobe.checkpoints",
    "CheckpointOut": "metaprobe.option_commands",
    "ContractMismatch": "metaprobe.checkpoints",
    "Database": "metaprobe.records.database",
    "Decision": "metaprobe.records.types",
    "DecisionAnswer": "metaprobe.records.types",
    "DecisionPredictor": "metaprobe.probes.decisions",
    "DecisionQuestion": "metaprobe.records.decisions",
    "Digest": "metaprobe.option_commands",
    "DispatchedRun": "metaprobe.eval.systems.dispatch",
    "Fields": "metaprobe.option_commands",
    "FlagOptions": "metaprobe.checkpoints",
    "Folds": "metaprobe.training.options",
    "GatedAnswer": "metaprobe.routing.watch_stream",
    "IdFault": "metaprobe.records.spreadsheets",
    "ImportFileError": "metaprobe.records.errors",
    "Interval": "metaprobe.eval.metrics.bootstrap",
    "InvalidResponse": "metaprobe.records.errors",
    "Item": "metaprobe.records.types",
    "LEFT_OUT": "metaprobe.training.options",
    "LLM": "metaprobe.llms.base",
    "LLMError": "metaprobe.llms.base",
    "Label": "metaprobe.records.types",
    "LabelWords": "metaprobe.records.label_state",
    "LabelledScores": "metaprobe.records.labelled_scores",
    "LineOptions": "metaprobe.training.options",
    "LogprobsMode": "metaprobe.records.types",
    "Message": "metaprobe.records.types",
    "ModelName": "metaprobe.llms.model_name",
    "NoAnswer": "metaprobe.records.logs.sample",
    "OnMismatch": "metaprobe.probes.contract",
    "OnVerdict": "metaprobe.probes.scored",
    "OneCheckpoint": "metaprobe.option_commands",
    "OneWriter": "metaprobe.records.writing",
    "Option": "metaprobe.checkpoints.options",
    "Outcome": "metaprobe.routing.policy",
    "Panel": "metaprobe.routing.panel",
    "PanelAnswer": "metaprobe.routing.panel_answers",
    "PanelAnswered": "metaprobe.routing.panel",
    "PanelStep": "metaprobe.routing.panel_answers",
    "PanelVerdict": "metaprobe.routing.panel_answers",
    "PaperRules": "metaprobe.routing.paper",
    "ParsedResponse": "metaprobe.records.response",
    "ParsedText": "metaprobe.records.response",
    "Policy": "metaprobe.routing.policy",
    "Price": "metaprobe.llms.pricing",
    "Promotion": "metaprobe.training.versions",
    "QUESTIONS_ROLE": "metaprobe.records.decisions",
    "QualityOptions": "metaprobe.training.options",
    "QualityPredictor": "metaprobe.probes.quality",
    "RecordError": "metaprobe.records.errors",
    "ReplaceOptions": "metaprobe.training.options",
    "Replacement": "metaprobe.probes.source",
    "Request": "metaprobe.llms.base",
    "Run": "metaprobe.records.types",
    "RunStore": "metaprobe.records.store",
    "RunWriter": "metaprobe.records.store",
    "Sampling": "metaprobe.records.types",
    "Scored": "metaprobe.probes.scored",
    "Seed": "metaprobe.training.options",
    "Signal": "metaprobe.probes.signals",
    "SignalSource": "metaprobe.probes.source",
    "Signals": "metaprobe.probes.signals",
    "Stage": "metaprobe.training.options",
    "State": "metaprobe.routing.policy",
    "Statement": "metaprobe.records.types",
    "StoreMismatch": "metaprobe.records.errors",
    "Stores": "metaprobe.option_commands",
    "StreamingGate": "metaprobe.routing.gate",
    "SuccessEstimator": "metaprobe.routing.success",
    "TWO_OF_ONE_INDEX": "metaprobe.records.one_answer",
    "TextAnswer": "metaprobe.probes.text_predictor",
    "TextPredictor": "metaprobe.probes.text_predictor",
    "TopLogprobs": "metaprobe.training.options",
    "TrainedRuns": "metaprobe.training.recipes.all_of_runs",
    "Unwritable": "metaprobe.records.errors",
    "Usage": "metaprobe.records.types",
    "Verdict": "metaprobe.probes.verdict",
    "ambiguous_bias_score": "metaprobe.eval.metrics.bias",
    "answers_of": "metaprobe.probes.decisions",
    "api_options": "metaprobe.llms.model_name",
    "atomic_write": "metaprobe.records.writing",
    "bar_counters": "metaprobe.progress",
    "bias_score": "metaprobe.eval.metrics.bias",
    "bundled_digests": "metaprobe.checkpoints.files",
    "canonical": "metaprobe.records.correctness",
    "chosen": "metaprobe.records.correctness",
    "cluster_weights": "metaprobe.eval.metrics.bootstrap",
    "command": "metaprobe.option_commands",
    "command_line": "metaprobe.terminal",
    "decide_promotion": "metaprobe.training.versions",
    "decision_answers": "metaprobe.records.decisions",
    "entry_point_names": "metaprobe.records.plugins",
    "events_as_text": "metaprobe.records.parse",
    "failure_of": "metaprobe.records.openai_format",
    "final_answer": "metaprobe.records.correctness",
    "find_choices": "metaprobe.records.correctness",
    "how_to_install": "metaprobe.records.extras",
    "importance": "metaprobe.training.importance",
    "interval": "metaprobe.eval.metrics.bootstrap",
    "is_correct": "metaprobe.records.correctness",
    "is_csv": "metaprobe.records.lines",
    "iter_csv": "metaprobe.records.lines",
    "iter_json_lines": "metaprobe.records.lines",
    "kind_of": "metaprobe.records.answer_stream",
    "learned_until": "metaprobe.training.rescale",
    "learns": "metaprobe.routing.policy",
    "letter_options": "metaprobe.records.correctness",
    "list_faults": "metaprobe.records.spreadsheets",
    "load_checkpoint": "metaprobe.checkpoints",
    "load_plugin": "metaprobe.records.plugins",
    "load_runs": "metaprobe.training.evidence",
    "load_verified": "metaprobe.checkpoints.checkpoint",
    "make_decision": "metaprobe.routing.policy",
    "mean_interval": "metaprobe.eval.metrics.bootstrap",
    "most_voted": "metaprobe.records.correctness",
    "normalize": "metaprobe.records.spelling",
    "numbers": "metaprobe.records.correctness",
    "options_of": "metaprobe.checkpoints.options",
    "parse_body": "metaprobe.records.parse",
    "parse_chunks": "metaprobe.records.parse",
    "parse_confidence": "metaprobe.probes.verbalized",
    "parse_difficulty": "metaprobe.probes.verbalized",
    "parse_response": "metaprobe.records.parse",
    "plain": "metaprobe.eval.results",
    "progress_bar": "metaprobe.progress",
    "promote": "metaprobe.training.versions",
    "promote_panel": "metaprobe.training.versions",
    "quadratic_weighted_kappa": "metaprobe.eval.metrics.ranked",
    "read_call": "metaprobe.routing.panel_lines",
    "read_int": "metaprobe.records.spelling",
    "read_number": "metaprobe.records.correctness",
    "read_parts": "metaprobe.records.decisions",
    "read_questions": "metaprobe.records.decisions",
    "read_whole": "metaprobe.records.lines",
    "reading": "metaprobe.records.bad_lines",
    "recalibrate_quality": "metaprobe.training.rescale",
    "require": "metaprobe.records.extras",
    "response_of": "metaprobe.records.logs.inspect_log",
    "responses_in": "metaprobe.routing.panel_answers",
    "say": "metaprobe.progress",
    "say_checkpoint": "metaprobe.terminal",
    "score_again": "metaprobe.training.rescale",
    "score_response": "metaprobe.probes.scored",
    "shown_number": "metaprobe.terminal",
    "split_name": "metaprobe.checkpoints.options",
    "spoken_text": "metaprobe.records.segments",
    "stated_direction": "metaprobe.records.label_state",
    "steps": "metaprobe.progress",
    "system_figures": "metaprobe.eval.systems.system_figures",
    "text_table": "metaprobe.terminal",
    "train_quality": "metaprobe.training.recipes.quality",
    "watch": "metaprobe.routing.watch_stream",
    "why_no_label": "metaprobe.records.label_state",
    "wilson": "metaprobe.eval.metrics.bootstrap",
    "without_failed": "metaprobe.routing.policy",
    "words": "metaprobe.records.correctness",
}
"""Maps each name to its module in the core."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'metaprobe.api' has no attribute {name!r}; a house may use what stands in it")
    return getattr(import_module(_LATER[name]), name)  # not kept: what a test puts in its place is seen here, too


def __dir__() -> list[str]:
    return __all__
