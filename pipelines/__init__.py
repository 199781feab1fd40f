"""Monitor-control systems, one file each; their prompts are text files."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from metaprobe.pipelines import self_report
from metaprobe.pipelines.prompting import PromptError, Prompts
from metaprobe.records.types import Run

__all__ = ["SYSTEMS", "PromptError", "Prompts", "System"]


@dataclass(frozen=True, slots=True)
class System:
    """A monitor-control system as the collection sees it."""

    name: str
    variants: tuple[str, ...]
    prompts: tuple[str, ...]
    """Names of its prompt files, in `pipelines/prompts/<name>/`."""
    answer_stages: tuple[str, ...]
    """Stages whose calls are answers to the item, each of which gets a label."""
    run: Callable[..., Awaitable[Run]]
    """`(item, llm, *, variant, run_id, prompts) -> Run`."""
    extract_answer: Callable[..., str]
    """`(item, call, *, variant) -> str`: the answer within an answer call."""


SYSTEMS: dict[str, System] = {
    self_report.NAME: System(
        name=self_report.NAME,
        variants=self_report.VARIANTS,
        prompts=self_report.PROMPTS,
        answer_stages=(self_report.ANSWER_STAGE,),
        run=self_report.self_report,
        extract_answer=self_report.extract_answer,
    )
}
