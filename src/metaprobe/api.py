"""The only names of the core that `production` and `papers` may import.

`scripts/house.py` counts these names and refuses any other import of the core by a house. A module is imported when one
of its names is first used, so nobody waits for unused ones.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from metaprobe.checkpoints import Checkpoint, CheckpointError, ContractMismatch, FlagOptions
    from metaprobe.checkpoints.flagging import AGREEMENT
    from metaprobe.checkpoints.option_fields import Option, split_name
    from metaprobe.eval.metrics.bootstrap import Interval
    from metaprobe.eval.metrics.ranked import quadratic_weighted_kappa
    from metaprobe.eval.results import plain
    from metaprobe.eval.systems.dispatch import DispatchedRun
    from metaprobe.eval.systems.system_figures import system_figures
    from metaprobe.llms.base import LLM, LLMError, Request
    from metaprobe.llms.cache import CallCache
    from metaprobe.llms.call_selection import CallSelection
    from metaprobe.llms.model_name import ModelName
    from metaprobe.llms.pricing import Price
    from metaprobe.option_commands import AsJson, Digest, command
    from metaprobe.probes.quality import QualityPredictor
    from metaprobe.probes.scored_answer import OnVerdict, Scored
    from metaprobe.probes.signal_source import Replacement, SignalSource
    from metaprobe.probes.signals import Signal, Signals
    from metaprobe.probes.text_predictor import TextAnswer, TextPredictor
    from metaprobe.probes.verbalized import parse_stated
    from metaprobe.probes.verdict import Verdict
    from metaprobe.progress import progress_bar, say, steps
    from metaprobe.records.answer_stream import AnswerStream
    from metaprobe.records.bad_lines import BadFile
    from metaprobe.records.correctness import (
        canonical,
        chosen,
        final_answer,
        find_choices,
        is_correct,
        read_number,
        words,
    )
    from metaprobe.records.database import Database
    from metaprobe.records.decision_questions import DecisionQuestion, read_parts
    from metaprobe.records.errors import ImportFileError, InvalidResponse, RecordError, Unwritable
    from metaprobe.records.extras import how_to_install, require
    from metaprobe.records.label_state import LabelState, LabelWords
    from metaprobe.records.labelled_scores import LabelledScores
    from metaprobe.records.lines import is_csv, iter_csv, iter_json_lines, read_whole
    from metaprobe.records.logs.inspect_log import response_of
    from metaprobe.records.openai_format import failure_of
    from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes
    from metaprobe.records.parse import events_as_text, parse_chunks, parse_response
    from metaprobe.records.plugins import Plugins
    from metaprobe.records.response import ParsedResponse, ParsedText
    from metaprobe.records.segments import spoken_text
    from metaprobe.records.spelling import AT_LINE, normalize, read_int
    from metaprobe.records.spreadsheets import IdFault
    from metaprobe.records.store import RunStore
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
    from metaprobe.routing.panel.asking import Panel, PanelAnswered
    from metaprobe.routing.panel.compared_answers import PanelAnswer, PanelStep, PanelVerdict
    from metaprobe.routing.paper import PaperRules
    from metaprobe.routing.policy import Action, Outcome, Policy, State
    from metaprobe.routing.success_estimator import SuccessEstimator
    from metaprobe.routing.watch_stream import GatedAnswer, watch
    from metaprobe.terminal import command_line, say_checkpoint, shown_number, text_table
    from metaprobe.training.importance import importance
    from metaprobe.training.recalibrate import recalibrate_quality, score_again
    from metaprobe.training.recipes.all_of_runs import TrainedRuns
    from metaprobe.training.recipes.train_quality import train_quality
    from metaprobe.training.stored_runs import load_runs
    from metaprobe.training.training_options import (
        Folds,
        LineOptions,
        QualityOptions,
        Seed,
        WriteOptions,
    )
    from metaprobe.training.versions import Promotion

__all__ = [
    "AGREEMENT",
    "AT_LINE",
    "LLM",
    "Action",
    "AgentOutcome",
    "AnswerStream",
    "AsJson",
    "BadFile",
    "Call",
    "CallCache",
    "CallSelection",
    "Checkpoint",
    "CheckpointError",
    "ContractMismatch",
    "Database",
    "Decision",
    "DecisionAnswer",
    "DecisionQuestion",
    "Digest",
    "DispatchedRun",
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
    "LabelState",
    "LabelWords",
    "LabelledScores",
    "LineOptions",
    "LogprobsMode",
    "Message",
    "ModelName",
    "OnVerdict",
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
    "Plugins",
    "Policy",
    "Price",
    "Promotion",
    "QualityOptions",
    "QualityPredictor",
    "QuestionOutcomes",
    "RecordError",
    "Replacement",
    "Request",
    "Run",
    "RunStore",
    "Sampling",
    "Scored",
    "Seed",
    "Signal",
    "SignalSource",
    "Signals",
    "State",
    "Statement",
    "StreamingGate",
    "SuccessEstimator",
    "TextAnswer",
    "TextPredictor",
    "TrainedRuns",
    "Unwritable",
    "Usage",
    "Verdict",
    "WriteOptions",
    "atomic_write",
    "canonical",
    "chosen",
    "command",
    "command_line",
    "events_as_text",
    "failure_of",
    "final_answer",
    "find_choices",
    "how_to_install",
    "importance",
    "is_correct",
    "is_csv",
    "iter_csv",
    "iter_json_lines",
    "load_runs",
    "normalize",
    "parse_chunks",
    "parse_response",
    "parse_stated",
    "plain",
    "progress_bar",
    "quadratic_weighted_kappa",
    "read_int",
    "read_number",
    "read_parts",
    "read_whole",
    "recalibrate_quality",
    "require",
    "response_of",
    "say",
    "say_checkpoint",
    "score_again",
    "shown_number",
    "split_name",
    "spoken_text",
    "steps",
    "system_figures",
    "text_table",
    "train_quality",
    "watch",
    "words",
]
_LATER = {
    "AGREEMENT": "metaprobe.checkpoints.flagging",
    "AT_LINE": "metaprobe.records.spelling",
    "Action": "metaprobe.routing.policy",
    "AgentOutcome": "metaprobe.records.outcomes",
    "AnswerStream": "metaprobe.records.answer_stream",
    "AsJson": "metaprobe.option_commands",
    "BadFile": "metaprobe.records.bad_lines",
    "Call": "metaprobe.records.types",
    "CallCache": "metaprobe.llms.cache",
    "CallSelection": "metaprobe.llms.call_selection",
    "Checkpoint": "metaprobe.checkpoints",
    "CheckpointError": "metaprobe.checkpoints",
    "ContractMismatch": "metaprobe.checkpoints",
    "Database": "metaprobe.records.database",
    "Decision": "metaprobe.records.types",
    "DecisionAnswer": "metaprobe.records.types",
    "DecisionQuestion": "metaprobe.records.decision_questions",
    "Digest": "metaprobe.option_commands",
    "DispatchedRun": "metaprobe.eval.systems.dispatch",
    "FlagOptions": "metaprobe.checkpoints",
    "Folds": "metaprobe.training.training_options",
    "GatedAnswer": "metaprobe.routing.watch_stream",
    "IdFault": "metaprobe.records.spreadsheets",
    "ImportFileError": "metaprobe.records.errors",
    "Interval": "metaprobe.eval.metrics.bootstrap",
    "InvalidResponse": "metaprobe.records.errors",
    "Item": "metaprobe.records.types",
    "LLM": "metaprobe.llms.base",
    "LLMError": "metaprobe.llms.base",
    "Label": "metaprobe.records.types",
    "LabelState": "metaprobe.records.label_state",
    "LabelWords": "metaprobe.records.label_state",
    "LabelledScores": "metaprobe.records.labelled_scores",
    "LineOptions": "metaprobe.training.training_options",
    "LogprobsMode": "metaprobe.records.types",
    "Message": "metaprobe.records.types",
    "ModelName": "metaprobe.llms.model_name",
    "OnVerdict": "metaprobe.probes.scored_answer",
    "OneWriter": "metaprobe.records.writing",
    "Option": "metaprobe.checkpoints.option_fields",
    "Outcome": "metaprobe.routing.policy",
    "Panel": "metaprobe.routing.panel.asking",
    "PanelAnswer": "metaprobe.routing.panel.compared_answers",
    "PanelAnswered": "metaprobe.routing.panel.asking",
    "PanelStep": "metaprobe.routing.panel.compared_answers",
    "PanelVerdict": "metaprobe.routing.panel.compared_answers",
    "PaperRules": "metaprobe.routing.paper",
    "ParsedResponse": "metaprobe.records.response",
    "ParsedText": "metaprobe.records.response",
    "Plugins": "metaprobe.records.plugins",
    "Policy": "metaprobe.routing.policy",
    "Price": "metaprobe.llms.pricing",
    "Promotion": "metaprobe.training.versions",
    "QualityOptions": "metaprobe.training.training_options",
    "QualityPredictor": "metaprobe.probes.quality",
    "QuestionOutcomes": "metaprobe.records.outcomes",
    "RecordError": "metaprobe.records.errors",
    "Replacement": "metaprobe.probes.signal_source",
    "Request": "metaprobe.llms.base",
    "Run": "metaprobe.records.types",
    "RunStore": "metaprobe.records.store",
    "Sampling": "metaprobe.records.types",
    "Scored": "metaprobe.probes.scored_answer",
    "Seed": "metaprobe.training.training_options",
    "Signal": "metaprobe.probes.signals",
    "SignalSource": "metaprobe.probes.signal_source",
    "Signals": "metaprobe.probes.signals",
    "State": "metaprobe.routing.policy",
    "Statement": "metaprobe.records.types",
    "StreamingGate": "metaprobe.routing.gate",
    "SuccessEstimator": "metaprobe.routing.success_estimator",
    "TextAnswer": "metaprobe.probes.text_predictor",
    "TextPredictor": "metaprobe.probes.text_predictor",
    "TrainedRuns": "metaprobe.training.recipes.all_of_runs",
    "Unwritable": "metaprobe.records.errors",
    "Usage": "metaprobe.records.types",
    "Verdict": "metaprobe.probes.verdict",
    "WriteOptions": "metaprobe.training.training_options",
    "atomic_write": "metaprobe.records.writing",
    "canonical": "metaprobe.records.correctness",
    "chosen": "metaprobe.records.correctness",
    "command": "metaprobe.option_commands",
    "command_line": "metaprobe.terminal",
    "events_as_text": "metaprobe.records.parse",
    "failure_of": "metaprobe.records.openai_format",
    "final_answer": "metaprobe.records.correctness",
    "find_choices": "metaprobe.records.correctness",
    "how_to_install": "metaprobe.records.extras",
    "importance": "metaprobe.training.importance",
    "is_correct": "metaprobe.records.correctness",
    "is_csv": "metaprobe.records.lines",
    "iter_csv": "metaprobe.records.lines",
    "iter_json_lines": "metaprobe.records.lines",
    "load_runs": "metaprobe.training.stored_runs",
    "normalize": "metaprobe.records.spelling",
    "parse_chunks": "metaprobe.records.parse",
    "parse_stated": "metaprobe.probes.verbalized",
    "parse_response": "metaprobe.records.parse",
    "plain": "metaprobe.eval.results",
    "progress_bar": "metaprobe.progress",
    "quadratic_weighted_kappa": "metaprobe.eval.metrics.ranked",
    "read_int": "metaprobe.records.spelling",
    "read_number": "metaprobe.records.correctness",
    "read_parts": "metaprobe.records.decision_questions",
    "read_whole": "metaprobe.records.lines",
    "recalibrate_quality": "metaprobe.training.recalibrate",
    "require": "metaprobe.records.extras",
    "response_of": "metaprobe.records.logs.inspect_log",
    "say": "metaprobe.progress",
    "say_checkpoint": "metaprobe.terminal",
    "score_again": "metaprobe.training.recalibrate",
    "shown_number": "metaprobe.terminal",
    "split_name": "metaprobe.checkpoints.option_fields",
    "spoken_text": "metaprobe.records.segments",
    "steps": "metaprobe.progress",
    "system_figures": "metaprobe.eval.systems.system_figures",
    "text_table": "metaprobe.terminal",
    "train_quality": "metaprobe.training.recipes.train_quality",
    "watch": "metaprobe.routing.watch_stream",
    "words": "metaprobe.records.correctness",
}
"""Maps each name to its module in the core."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'metaprobe.api' has no attribute {name!r}; a house may use what stands in it")
    return getattr(import_module(_LATER[name]), name)  # not kept: what a test puts in its place is seen here, too


def __dir__() -> list[str]:
    return __all__
