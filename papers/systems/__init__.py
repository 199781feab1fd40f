"""Monitor-control systems and the baselines of their papers, one file each; their prompts are text files."""

from metaprobe.papers.systems.named_systems import SYSTEMS, load_system
from metaprobe.papers.systems.prompting import PromptError, Prompts
from metaprobe.papers.systems.session import Models, Session, Setup
from metaprobe.papers.systems.system import System

__all__ = ["SYSTEMS", "Models", "PromptError", "Prompts", "Session", "Setup", "System", "load_system"]
