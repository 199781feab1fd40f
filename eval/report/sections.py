"""The sections of a report in their order."""

from metaprobe.eval.report.costs import choice_section, routing_section
from metaprobe.eval.report.equal_difficulty import difficulty_section, efficiency_section
from metaprobe.eval.report.facts import accuracy_section, audits_section, notes_section, provenance_section
from metaprobe.eval.report.glance import glance_section
from metaprobe.eval.report.inside import layers_section, seen_section, trajectories_section
from metaprobe.eval.report.layout import Section
from metaprobe.eval.report.methods import methods_section
from metaprobe.eval.report.performance import reliability_section, scores_section
from metaprobe.eval.report.systems import systems_section
from metaprobe.eval.report.threshold_curves import thresholds_section
from metaprobe.eval.results import Comparison


def sections(comparison: Comparison) -> tuple[Section, ...]:
    """Those that have something to show, and the method table in any case. Draws nothing."""
    every = (
        scores_section(comparison),
        reliability_section(comparison),
        thresholds_section(comparison),
        seen_section(comparison.seen),
        difficulty_section(comparison),
        efficiency_section(comparison),
        layers_section(comparison.sweeps),
        trajectories_section(comparison.trajectories, comparison.role_trajectories),
        accuracy_section(comparison),
        choice_section(comparison.choices),
        systems_section(comparison),
        routing_section(comparison.routing),
        audits_section(comparison.audits),
        notes_section(comparison.notes),
        provenance_section(comparison),
    )
    first = glance_section(comparison)
    always = methods_section(comparison)
    return (*(() if first.empty else (first,)), always, *(section for section in every if not section.empty))
