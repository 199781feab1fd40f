"""metaprobe: how good is a language model's answer, from signals the model already gives off.

predictor = load("bundled:quality")      # or the folder of one of your own
verdict = predictor.predict(response)    # an OpenAI chat completion with log-probabilities
"""

from metaprobe.before_imports import check_rooms, hold_early_hangups

hold_early_hangups()  # what follows takes a tenth of a second, in which SIGHUP would end a server
check_rooms()

from importlib import import_module  # noqa: E402
from importlib.metadata import version  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

from metaprobe.probes.deferred import DONE_IN  # noqa: E402

if TYPE_CHECKING:
    from metaprobe.checkpoints.checkpoint import Checkpoint
    from metaprobe.checkpoints.checkpoint_errors import CheckpointError
    from metaprobe.loading import load
    from metaprobe.probes.hidden import ConfidenceProbe, DifficultyProbe
    from metaprobe.probes.quality import QualityPredictor
    from metaprobe.probes.signals import Signals
    from metaprobe.probes.verdict import Verdict
    from metaprobe.records.errors import MissingExtra, RecordError
    from metaprobe.records.import_store import import_file
    from metaprobe.records.parse import parse_response
    from metaprobe.records.store import RunStore
    from metaprobe.routing.gate import StreamingGate
    from metaprobe.routing.panel.asking import Panel
    from metaprobe.routing.paper import PaperRules
    from metaprobe.routing.watch_stream import watch
    from metaprobe.train import (
        compare,
        teach,
        train_adapter,
        train_gate,
        train_hidden,
        train_panel,
        train_quality,
        train_router,
        train_success,
        train_text,
    )

__version__ = version("metaprobe")

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "ConfidenceProbe",
    "DifficultyProbe",
    "MissingExtra",
    "Panel",
    "PaperRules",
    "QualityPredictor",
    "RecordError",
    "RunStore",
    "Signals",
    "StreamingGate",
    "Verdict",
    "compare",
    "import_file",
    "load",
    "parse_response",
    "teach",
    "train_adapter",
    "train_gate",
    "train_hidden",
    "train_panel",
    "train_quality",
    "train_router",
    "train_success",
    "train_text",
    "watch",
]
_LATER = {
    "Checkpoint": "metaprobe.checkpoints.checkpoint",
    "CheckpointError": "metaprobe.checkpoints.checkpoint_errors",
    "ConfidenceProbe": "metaprobe.probes.hidden",
    "DifficultyProbe": "metaprobe.probes.hidden",
    "MissingExtra": "metaprobe.records.errors",
    "Panel": "metaprobe.routing.panel.asking",
    "PaperRules": "metaprobe.routing.paper",
    "QualityPredictor": "metaprobe.probes.quality",
    "RecordError": "metaprobe.records.errors",
    "RunStore": "metaprobe.records.store",
    "Signals": "metaprobe.probes.signals",
    "StreamingGate": "metaprobe.routing.gate",
    "Verdict": "metaprobe.probes.verdict",
    "compare": "metaprobe.train",
    "import_file": "metaprobe.records.import_store",
    "load": "metaprobe.loading",
    "parse_response": "metaprobe.records.parse",
    "teach": "metaprobe.train",
    "train_adapter": "metaprobe.train",
    "train_gate": "metaprobe.train",
    "train_hidden": "metaprobe.train",
    "train_panel": "metaprobe.train",
    "train_quality": "metaprobe.train",
    "train_router": "metaprobe.train",
    "train_success": "metaprobe.train",
    "train_text": "metaprobe.train",
    "watch": "metaprobe.routing.watch_stream",
}
"""Maps each public name to its module. The module is imported when the name is first used, so nobody waits for unused
ones.
"""

DONE_IN.update(
    {
        "adapt a predictor": ("metaprobe.training.adapt", "fit"),
        "fit a probe": ("metaprobe.training.recipes.train_hidden", "train"),
        "read a blend": ("metaprobe.probes.blend", "fit"),
        "read a text": ("metaprobe.llms.hidden_capture", "train"),
        "read canaries": ("metaprobe.llms.states_check", "train"),
        "read decisions": ("metaprobe.probes.decision_predictor", "fit"),
        "read texts": ("metaprobe.llms.text_pairs", "train"),
    }
)


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'metaprobe' has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
