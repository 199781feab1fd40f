"""The audits of an adapter probe: all that need no second training, and why the others were not made."""

import dataclasses
from collections.abc import Mapping

import numpy as np

from metaprobe.eval.audits.run_audits import PROMPT, AuditInputs, AuditReport, run_audits
from metaprobe.eval.audits.training_data import (
    class_balance,
    group_overlap,
    label_noise,
    near_duplicates,
    repeated_questions,
)
from metaprobe.probes.adapter import When
from metaprobe.training.adapter.data import AdapterData
from metaprobe.training.common.roles import Roles
from metaprobe.training.crossfit.audit import CONTROLS
from metaprobe.training.crossfit.methods import Evidence, Scores, standard_methods

NOT_MADE = {
    "shuffled labels": "each refit is a training of its own",
    "random features": "each refit is a training of its own",
    "other domains": "each task or dimension left out is a training of its own",
    "layers tried": "there are none to choose from, for it reads texts",
    PROMPT: "needs the questions' texts",
}
"""Audit, by its name in `AuditReport.skipped`, and why no adapter has it."""


def control_scores(data: AdapterData, roles: Roles, *, seed: int) -> dict[str, Scores]:
    """What explains an adapter's numbers more simply, fitted in its roles: name -> held-out scores of the test rows."""
    features = np.empty((len(data.table), 0), dtype=np.float32)  # these controls read none
    evidence = Evidence(data.table, features, feature_names=(), schema="")
    return {
        method.name: method.fit(evidence, roles, seed=seed).score(roles.test)
        for method in standard_methods(evidence)
        if method.name in CONTROLS
    }


def adapter_audits(
    data: AdapterData, roles: Roles, scores: Mapping[When, Scores], controls: Mapping[str, Scores], *, seed: int
) -> AuditReport:
    """`scores` and `controls` are of the test rows, in their order; the data are audited whole."""
    table, tested = data.table, data.table.rows(roles.test)
    splits = [{field.name: getattr(roles, field.name) for field in dataclasses.fields(roles)}]
    of_data = [class_balance(table.y), group_overlap(table.groups, splits)]
    made = {"group overlap"}
    if PROMPT in controls:  # the questions were stored
        of_data += [
            repeated_questions(table.questions, splits, y=table.y),
            near_duplicates(table.questions, splits, y=table.y, seed=seed),
        ]
        made.add("repeated questions and near-duplicates")
    if noise := label_noise(data.labels_by_source, table.groups, y=table.y, seed=seed):
        of_data += noise
        made.add("label noise")
    reports = [
        run_audits(AuditInputs(name=probe_name(when), table=tested, score=values, controls=controls), seed=seed)
        for when, values in scores.items()
    ]
    audits = {audit.name: audit for report in reports for audit in report.audits} | {a.name: a for a in of_data}
    skipped = (line.partition(": ") for report in reports for line in report.skipped)
    reasons = {name: NOT_MADE.get(name, why) for name, _, why in skipped if name not in made}
    return AuditReport(tuple(audits.values()), tuple(f"{name}: {why}" for name, why in reasons.items()))


def probe_name(when: When) -> str:
    """What a probe of that moment is called in numbers and audits."""
    return f"adapter probe {when} the answer"
