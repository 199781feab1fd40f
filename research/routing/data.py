"""The outcomes that routing is measured on, and which of them the ways to ask were developed on.

What a source does not hold is assumed here, and said on the page: prices of models that were never sold by the query.
"""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from metaprobe.eval.systems.metacogagent_figures import metacogagent_outcomes
from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes, outcome_of_line
from metaprobe.records.store import RunStore
from research.blocks import ROOT
from research.quality.data import lines

CHARS_PER_TOKEN = 4
GUESSED_TOKENS = 200
"""Tokens assumed for an answer whose length is not recorded."""
USD_PER_BILLION = 0.02
"""Assumed price of a million tokens for each billion of a model's parameters, where a source has no prices."""
MODELS = 12
"""Number of models taken of the 83 on MMLU-Pro."""
PARAMETERS = {"alpha": 0.135, "beta": 0.5, "gamma": 1.5}
"""Billions, of the agents of recorded/metacog-every-agent."""


HALVED = "mmlu_pro, verbal", "mmlu_pro, token"
"""Sets of which the ways to ask were developed on a half of the questions: the other half alone is measured."""
DEVELOPED = "router_llmrouter9", "metacog-every-agent"
"""Sets that the ways to ask were developed on."""


@dataclass(frozen=True, slots=True)
class DataSet:
    about: str
    load: Callable[[Path], list[QuestionOutcomes]]
    budgets: tuple[float, ...] = ()
    """US dollars for 1,000 questions; none for five shares of what the best single agent costs."""


def for_development(question: str) -> bool:
    """Returns whether a question of a halved set is in the half that the ways to ask were developed on."""
    return hashlib.sha256(question.encode()).digest()[0] % 2 == 0


def questions_of(name: str, data: Path) -> list[QuestionOutcomes]:
    """Returns the questions of a set that are measured."""
    return [q for q in SETS[name].load(data) if name not in HALVED or not for_development(q.id)]


def cascade9(data: Path) -> list[QuestionOutcomes]:
    return [
        QuestionOutcomes(
            row["id"],
            row["id"],
            row["question"],
            row["dataset"],
            {
                name: AgentOutcome(str(o["answer"]), float(o["correct"]), o["conf"], o["cost"], o["latency_ms"])
                for name, o in row["models"].items()
            },
        )
        for row in lines(data / "router_cascade9" / "data.jsonl.gz")
    ]


def mmlu_pro(data: Path, confidence: str) -> list[QuestionOutcomes]:
    """Twelve models spread evenly over the sizes that their names give; chosen before anything was measured.

    Of those whose name gives a size, that are no base model or second packing of another, that answer 95 % of the
    questions and state both confidences for 95 %.
    """
    folder = data / "mmlu_pro_models83"
    known = json.loads((folder / "models.json").read_text())
    usable = [
        (size, info["model"])
        for info in known["info"]
        if (size := billions(info["model"])) is not None
        and not re.search(r"Base|FP8|AWQ|Turbo|fp8|think", info["model"])
        and info["no_answer_rate"] < 0.05
        and (info["logit_conf_coverage"] or 0) > 0.95
        and (info["verbal_conf_coverage"] or 0) > 0.95
    ]
    usable.sort()
    count = min(MODELS, len(usable))
    chosen = [usable[round(i * (len(usable) - 1) / (count - 1))] for i in range(count)]
    column = {name: known["models"].index(name) for _, name in chosen}
    found = []
    for row in lines(folder / "data.jsonl.gz"):
        options = "\n".join(f"{chr(65 + i)}: {option}" for i, option in enumerate(row["options"]))
        question = f"{row['question']}\n{options}"
        read = len(question) / CHARS_PER_TOKEN
        agents = {
            name: AgentOutcome(
                "",
                float(row["correct"][at]),
                row[confidence][at],
                (read + (row["tokens"][at] or 0)) * size * USD_PER_BILLION / 1e6,
            )
            for (size, name), at in zip(chosen, column.values(), strict=True)
        }
        found.append(QuestionOutcomes(row["id"], row["id"], question, row["category"], agents))
    return found


def billions(model: str) -> float | None:
    """Returns the billions of parameters that the name gives; all of them in a mixture of experts."""
    found = re.search(r"(?:^|[-_])(\d+)x(\d+(?:\.\d+)?)B|(?:^|[-_])(\d+(?:\.\d+)?)[Bb](?:[-_]|$)", model)
    if found is None:
        return None
    return float(found[1]) * float(found[2]) if found[1] else float(found[3])


def confidence11(data: Path) -> list[QuestionOutcomes]:
    """Questions that all eleven answered; every call costs one dollar for 1,000, as the source has no prices."""
    return [
        QuestionOutcomes(
            row["id"],
            row["id"],
            row["question"],
            row["dataset"].split("_")[0],
            {name: AgentOutcome("", float(o["correct"]), o["stated"], 0.001) for name, o in row["models"].items()},
        )
        for row in lines(data / "confidence_models11" / "data.jsonl.gz")
        if len(row["models"]) == 11
    ]


def llmrouter9(data: Path) -> list[QuestionOutcomes]:
    """No confidences and no answers: routing before anything is asked. Tokens are guessed from the text's length."""
    folder = data / "router_llmrouter9"
    prices = json.loads((folder / "models.json").read_text())
    found = []
    for row in lines(folder / "data.jsonl.gz"):
        read = len(row["question"]) / CHARS_PER_TOKEN
        agents = {
            name: AgentOutcome(
                "",
                min(max(float(score), 0.0), 1.0),
                None,
                (read * prices[name]["input_price_per_mtok"] + GUESSED_TOKENS * prices[name]["output_price_per_mtok"])
                / 1e6,
            )
            for name, score in row["scores"].items()
        }
        found.append(QuestionOutcomes(row["id"], row["id"], row["question"], row["task"], agents))
    return found


def metacog(_: Path) -> list[QuestionOutcomes]:
    """Our own full matrix. Each agent's cost is that of its stated confidence and its answer."""
    runs, found = list(RunStore(ROOT / "recorded" / "metacog-every-agent")), []
    for run, record in zip(runs, metacogagent_outcomes(runs, by_classifier=True), strict=True):
        for name, outcome in record["agents"].items():
            outcome["cost_usd"] = sum(spent(call) for call in run.calls if call.agent == name)
        found.append(outcome_of_line(record))
    return found


def spent(call: Any) -> float:
    """US dollars of one call of ours; nothing for the classifier's, which every way of routing there needs."""
    tokens = call.usage.prompt_tokens + call.usage.completion_tokens
    return float(PARAMETERS.get(call.agent, 0.0) * USD_PER_BILLION * tokens / 1e6)


ASSUMED = f"{USD_PER_BILLION:g} USD per million tokens and billion parameters"
SETS = {
    "router_cascade9": DataSet(
        "nine models, recorded dollars, log-probability confidence",
        cascade9,
        (0.104, 0.2, 0.364, 0.518, 0.76),
    ),
    "mmlu_pro, verbal": DataSet(
        f"{MODELS} of 83 models, stated confidence; price assumed: {ASSUMED}, recorded answer tokens",
        lambda data: mmlu_pro(data, "verbal_conf"),
    ),
    "mmlu_pro, token": DataSet(
        f"the same {MODELS} models, mean token probability as confidence", lambda data: mmlu_pro(data, "logit_conf")
    ),
    "confidence_models11": DataSet(
        "eleven models, stated confidence; every call assumed to cost 1 USD per 1,000",
        confidence11,
        (1.0, 1.25, 1.5, 2.0, 2.5),
    ),
    "router_llmrouter9": DataSet(
        f"nine models, no confidence; recorded token prices, tokens assumed: a quarter of the question's "
        f"characters, and {GUESSED_TOKENS} for the answer",
        llmrouter9,
    ),
    "metacog-every-agent": DataSet(
        f"three real local models on MetaCog-Eval, stated confidence; price assumed: {ASSUMED}", metacog
    ),
}
