"""Monitor-control systems and the baselines of their papers, one file each; their prompts are text files."""

from metaprobe.pipelines import (
    caelf,
    essay_debate,
    expert_prompting,
    likelier_choice,
    metacogagent,
    metacrit,
    monitor_generate_verify,
    multi_agent_debate,
    multi_expert,
    self_refine,
    self_report,
    self_verification,
    universal_self_consistency,
    zero_shot_cot,
)
from metaprobe.pipelines.prompting import PromptError, Prompts
from metaprobe.pipelines.session import Models, Session, Setup
from metaprobe.pipelines.system import System

__all__ = ["SYSTEMS", "Models", "PromptError", "Prompts", "Session", "Setup", "System"]

SYSTEMS: dict[str, System] = {
    system.name: system
    for system in (
        self_report.SYSTEM,
        metacrit.SYSTEM,
        monitor_generate_verify.SYSTEM,
        metacogagent.SYSTEM,
        essay_debate.SYSTEM,
        caelf.SYSTEM,
        zero_shot_cot.SYSTEM,
        self_refine.SYSTEM,
        self_verification.SYSTEM,
        universal_self_consistency.SYSTEM,
        expert_prompting.SYSTEM,
        multi_agent_debate.SYSTEM,
        multi_expert.SYSTEM,
        likelier_choice.SYSTEM,
    )
}
"""Every system that can be collected, by name."""
