"""Monitor-control systems and the baselines of their papers, one file each; their prompts are text files."""

from metaprobe.pipelines.named_systems import SYSTEMS, load_system
from metaprobe.pipelines.prompting import PromptError, Prompts
from metaprobe.pipelines.session import Models, Session, Setup
from metaprobe.pipelines.system import System

__all__ = ["SYSTEMS", "Models", "PromptError", "Prompts", "Session", "Setup", "System", "load_system"]
