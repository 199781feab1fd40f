"""Questions of eight tasks, each with which models answered it right: outcomes, before anything is measured."""

import gzip
import json
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from metaprobe.records.outcomes import AgentOutcome, QuestionOutcomes
from metaprobe.records.store import RunStore

RECORDED = Path(__file__).parents[2] / "recorded" / "states"
QUESTIONS, MORE_QUESTIONS = 1500, {"MMLU-Pro": 2500}
"""Most questions of a task, drawn with seed 0: 1,000 with labels and at least 500 others. Tasks with many models have
more, as each prompt is read once for all of them."""


def _lines(data: Path, name: str) -> list[dict[str, Any]]:
    path = data / name / "data.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _question(
    identity: str, group: str, question: str, dimension: str, correct: Mapping[str, float | None]
) -> QuestionOutcomes:
    agents = {name: AgentOutcome(score=float(value)) for name, value in correct.items() if value is not None}
    return QuestionOutcomes(identity, group, question, dimension, agents)


def _recorded(name: str, data: Path) -> Iterator[QuestionOutcomes]:
    """Yields the recorded answers of the 0.5B and the 1.5B coder to the same questions."""
    right: dict[str, dict[str, float]] = {}
    items: dict[str, Any] = {}
    for model in ("qwen-coder-0.5b", "qwen-coder-1.5b"):
        for run in RunStore(RECORDED / model / name).runs():
            if run.outcome is not None:
                right.setdefault(run.item.id, {})[model] = float(run.outcome)
                items[run.item.id] = run.item
    for identity, item in items.items():
        yield _question(identity, item.group, item.question, item.dimension or "", right[identity])


def _choices(question: str, options: list[str]) -> str:
    return question + "\n\nChoices:\n" + "\n".join(f"{chr(65 + at)}: {option}" for at, option in enumerate(options))


MMLU_PRO_MODELS = (0.1, 0.25, 0.4, 0.5, 0.6, 0.7, 0.85, 1.0)
"""Places of the models that are read, in the order of their accuracy."""


def _mmlu_pro(data: Path) -> Iterator[QuestionOutcomes]:
    rows = _lines(data, "mmlu_pro_models83")
    names = json.loads((data / "mmlu_pro_models83" / "models.json").read_text())["models"]
    names = [name if isinstance(name, str) else name["name"] for name in names]
    known = [at for at in range(len(names)) if all(row["correct"][at] is not None for row in rows)]
    known.sort(key=lambda at: sum(row["correct"][at] for row in rows))
    chosen = [known[round(share * (len(known) - 1))] for share in MMLU_PRO_MODELS]
    for row in rows:
        correct = {names[at]: row["correct"][at] for at in chosen}
        yield _question(row["id"], row["id"], _choices(row["question"], row["options"]), row["category"], correct)


def _cascade(dataset: str) -> Callable[[Path], Iterator[QuestionOutcomes]]:
    models = ("llama3.2-1b", "llama3.1-8b", "qwen2.5-72b-instruct")

    def read(data: Path) -> Iterator[QuestionOutcomes]:
        for row in _lines(data, "router_cascade9"):
            if row["dataset"] == dataset:
                correct = {name: (row["models"].get(name) or {}).get("correct") for name in models}
                yield _question(row["id"], row["id"], row["question"], row.get("subject") or "", correct)

    return read


def _boolq(data: Path) -> Iterator[QuestionOutcomes]:
    models = ("Meta-Llama-3.1-8B-Instruct", "claude-3-haiku-20240307", "gpt-4o")
    for row in _lines(data, "confidence_models11"):
        if row["dataset"] == "boolq_valid":
            correct = {name: (row["models"].get(name) or {}).get("correct") for name in models}
            yield _question(row["id"], row["id"], row["question"], "", correct)


def _maths(data: Path) -> Iterator[QuestionOutcomes]:
    models = ("mistral", "llama", "qwen3_14b")
    for row in _lines(data, "math_sampling_uncertainty5"):
        correct = {name: (row["models"].get(name) or {}).get("judge_correct") for name in models}
        yield _question(row["id"], row["id"], row["question"], "", correct)


TASKS: dict[str, Callable[[Path], Iterator[QuestionOutcomes]]] = {
    "places": lambda data: _recorded("places", data),
    "TriviaQA": lambda data: _recorded("triviaqa", data),
    "CREAK": lambda data: _recorded("creak", data),
    "BoolQ": _boolq,
    "MMLU-Pro": _mmlu_pro,
    "MedMCQA": _cascade("medmcqa"),
    "word problems": _maths,
    "MMLU": _cascade("mmlu"),
}


def outcomes(task: str, data: Path) -> list[QuestionOutcomes]:
    """Returns the questions of a task that every one of its models answered, in an order drawn with seed 0."""
    questions = list(TASKS[task](data))
    names = {name for question in questions for name in question.agents}
    whole = [question for question in questions if set(question.agents) == names and question.question]
    random.Random(0).shuffle(whole)
    return whole[: MORE_QUESTIONS.get(task, QUESTIONS)]
