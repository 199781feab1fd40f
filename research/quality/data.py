"""The data sets of the quality benchmark, each as evidence with labels, groups and runs: what `quality.py` measures.

A run, here, is what answers have in common that a caller knows: the model and the way of asking (or the stage). It is
in the table's columns `models` and `variants`.
"""

import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from metaprobe.eval.answer_table import AnswerTable, group_of
from metaprobe.probes.features import features, schema
from metaprobe.records.types import Call, Run
from metaprobe.training.evidence import Evidence
from metaprobe.training.stored_runs import load_runs

Row = Mapping[str, Any]
Labels = NDArray[np.int64]

HALLUCINATED_SHARE = 0.3
"""Share of the characters above which an answer counts as mostly hallucinated. Near the median; fixed before any
fit."""


@dataclass(frozen=True, slots=True, eq=False)
class DataSet:
    """Answers with a label, to be cross-fitted."""

    name: str
    what: str
    """Says what y = 1 means, and where answers and labels are from."""
    evidence: Evidence
    alternatives: NDArray[np.object_] | None = None
    """Log-probabilities of the likeliest tokens of each answer (T, k), where they were recorded."""

    @property
    def runs(self) -> NDArray[np.str_]:
        """The run of each answer."""
        return runs_of(self.evidence.table)


def runs_of(table: AnswerTable) -> NDArray[np.str_]:
    """Model and way of asking of each answer, as one name."""
    return np.array([f"{m}, {v}" if v else m for m, v in zip(table.models, table.variants, strict=True)])


def evidence_of(rows: Sequence[Row]) -> Evidence:
    """Evidence from rows of id, group, y, logprobs and, optionally, model, variant, dimension, level, cut."""
    logprobs = np.empty(len(rows), dtype=object)
    logprobs[:] = [np.asarray(row["logprobs"], np.float32) for row in rows]

    def column(name: str, other: Any) -> NDArray[Any]:
        return np.array([row.get(name, other) for row in rows])

    unknown = np.full(len(rows), np.nan)
    table = AnswerTable(
        call_ids=column("id", ""),
        items=column("group", ""),
        tasks=column("task", ""),
        groups=column("group", ""),
        variants=column("variant", ""),
        dimensions=column("dimension", ""),
        levels=column("level", ""),
        questions=np.full(len(rows), ""),
        models=column("model", ""),
        y=column("y", 0).astype(np.int64),
        stated_difficulty=unknown,
        stated_confidence=unknown,
        p_true=unknown,
        logprobs=logprobs,
        tokens=np.array([len(x) for x in logprobs], dtype=np.int64),
        cut=column("cut", False),
    )
    full = schema("full")
    return Evidence(table, features(full, list(logprobs)), full.names, full.name)


def lines(path: Path) -> list[Row]:
    """The objects of a gzipped JSON-lines file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def token_logprobs_qa(data: Path) -> list[DataSet]:
    """Greedy answers of three models to TriviaQA, SQuAD and CoQA; y: the source's F1 matching."""
    found = lines(data / "token_logprobs_qa" / "data.jsonl.gz")
    rows = [
        {
            "id": row["id"],
            "group": f"{row['dataset']}/{row['example_id']}",
            "y": int(row["correct"]),
            "logprobs": row["token_logprobs"],
            "model": row["model"],
            "variant": f"{row['dataset']} {row['prompt_style']}{'' if row['use_context'] else ' without context'}",
            "dimension": row["dataset"],
        }
        for row in found
    ]
    return [DataSet("token_logprobs_qa", "right by F1 matching; greedy answers, by others", evidence_of(rows))]


def mu_shroom(data: Path) -> list[DataSet]:
    """Answers in 14 languages with hallucinated spans marked by people, as two targets.

    What is given are logits, on a scale of each model's own. Each is replaced by the log of the share of that model's
    logits that are not above it: at most 0, higher for surer tokens, and alike for all models. No label is looked at.
    """
    found = lines(data / "mu_shroom" / "data.jsonl.gz")
    logits = [np.asarray(row["token_logits"], np.float64)[: len(row["tokens"])] for row in found]
    models = np.array([row["model"] for row in found])
    series: list[Any] = [None] * len(found)
    for model in np.unique(models):
        members = np.flatnonzero(models == model)
        joined = np.concatenate([logits[i] for i in members])
        shares = np.log(rankdata(joined, method="average") / len(joined))
        for i, part in zip(members, np.split(shares, np.cumsum([len(logits[i]) for i in members])[:-1]), strict=True):
            series[i] = part
    targets = {
        "any span": ("no hallucinated span", [not row["hallucinated"] for row in found]),
        "share": (
            f"at most {HALLUCINATED_SHARE:.0%} of the characters hallucinated",
            [row["frac_chars_hallucinated"] <= HALLUCINATED_SHARE for row in found],
        ),
    }
    sets = []
    for name, (what, y) in targets.items():
        rows = [
            {
                "id": row["id"],
                "group": f"{row['lang']}/{row['question']}",
                "y": int(good),
                "logprobs": values,
                "model": row["model"],
                "dimension": row["lang"],
            }
            for row, good, values in zip(found, y, series, strict=True)
        ]
        about = f"{what}, by people; 38 models, 14 languages; logits as their rank within the model"
        sets.append(DataSet(f"mu_shroom, {name}", about, evidence_of(rows)))
    return sets


def gsm8k_token_entropy(data: Path) -> list[DataSet]:
    """Answers of Qwen2.5-7B-Instruct with the entropy of their first 100 to 400 tokens, which stands for -logprob."""
    rows = [
        {
            "id": row["id"],
            "group": str(row["gsm8k_test_index"]),
            "y": int(row["correct"]),
            "logprobs": [-value for value in row["token_entropies"]],
            "model": row["model"],
            "variant": row["run"],
        }
        for row in lines(data / "gsm8k_token_entropy" / "data.jsonl.gz")
        if row["token_entropies"]
    ]
    return [DataSet("gsm8k_token_entropy", "right, by program; minus entropy for log-probability", evidence_of(rows))]


def answers(runs: Sequence[Run], variant: Callable[[Run, Call], str]) -> Evidence:
    """Every call with a label `correct` and log-probabilities, in the order of its id."""
    rows: list[Row] = [
        {
            "id": call.id,
            "group": group_of(run.item),
            "y": int(y),
            "logprobs": call.logprobs,
            "model": call.model,
            "variant": variant(run, call),
            "dimension": run.item.dimension,
            "level": run.item.level,
            "cut": call.finish_reason == "length",
        }
        for run in runs
        for call in run.calls
        if (y := run.label("correct", call.id)) is not None and call.logprobs is not None and len(call.logprobs)
    ]
    return evidence_of(sorted(rows, key=lambda row: str(row["id"])))


def own_runs(recorded: Path) -> list[DataSet]:
    """The recorded runs of this project's systems; y: the answer is right, by program."""
    sets = []
    for name, (stores, variant) in OWN.items():
        present = [recorded / store for store in stores if (recorded / store).is_dir()]
        if len(present) < len(stores):
            continue
        runs = load_runs(present)
        evidence = answers(runs, variant)
        about = f"right, by program; recorded/{', recorded/'.join(stores)}"
        sets.append(DataSet(name, about, evidence, alternatives(runs, evidence.table)))
    return sets


def alternatives(runs: Sequence[Run], table: AnswerTable) -> NDArray[np.object_] | None:
    """The alternatives of every answer of the table; None where one has none."""
    kept = {call.id: call.top_logprobs for run in runs for call in run.calls}
    found = np.empty(len(table), dtype=object)
    found[:] = [kept[call_id] for call_id in table.call_ids.tolist()]
    return None if any(top is None for top in found) else found


OWN: Mapping[str, tuple[tuple[str, ...], Callable[[Run, Call], str]]] = {
    "metacog-every-agent": (("metacog-every-agent",), lambda run, call: ""),
    "metacog-eval, SmolLM2": (("smollm2-metacog-eval",), lambda run, call: run.variant),
    "gsm8k, Qwen2.5-Coder-0.5B": (("gsm8k-mgv", "gsm8k-cot"), lambda run, call: f"{run.system} {call.round}"),
    "metacog-eval, Qwen2.5-Coder-0.5B": (("qwen-metacog-eval",), lambda run, call: run.variant),
    "creak-metacrit": (("creak-metacrit",), lambda run, call: call.stage),
}
"""Name -> stores that belong together (the same questions), and what distinguishes their ways of asking."""


def with_tokens(of: DataSet, k: int) -> DataSet:
    """The answers that have k tokens or more."""
    keep = of.evidence.table.tokens >= k
    evidence = replace(of.evidence, table=of.evidence.table.rows(keep), features=of.evidence.features[keep])
    return replace(of, evidence=evidence, alternatives=None if of.alternatives is None else of.alternatives[keep])
