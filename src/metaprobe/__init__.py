"""metaprobe: how good is a language model's answer, from signals the model already gives off.

predictor = QualityPredictor.load()      # or the folder of one of your own
verdict = predictor.predict(response)    # an OpenAI chat completion with log-probabilities
"""

from importlib.metadata import version

from metaprobe.checkpoints import Checkpoint, CheckpointError, load_checkpoint
from metaprobe.probes.hidden import ConfidenceProbe, DifficultyProbe
from metaprobe.probes.quality import QualityPredictor, Verdict
from metaprobe.records.errors import MissingExtra, RecordError
from metaprobe.routing.ask_again import LearnedChoice

__version__ = version("metaprobe")

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "ConfidenceProbe",
    "DifficultyProbe",
    "LearnedChoice",
    "MissingExtra",
    "QualityPredictor",
    "RecordError",
    "Verdict",
    "load_checkpoint",
]
