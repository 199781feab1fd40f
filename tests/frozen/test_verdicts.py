"""Verdicts of the bundled checkpoints on recorded answers: scores, heads, flags and reasons."""

import json
import math
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frozen.freeze import HERE, RECORDED, check, done, frozen, run

import metaprobe
from metaprobe import QualityPredictor, RecordError, RunStore, Verdict

pytestmark = pytest.mark.filterwarnings("ignore")  # what a warning says stands in the reason too
FILES = sorted((HERE.parent / "responses").rglob("*.json"))
LOGS = HERE.parent / "logs"
FIGURE = r"-?\d+(?:\.\d+)?"
"""A number in a sentence of a reason."""
MOST = 120
"""Answers of a store that are scored, evenly spread over it."""
ROWS = 8
"""Answers of a store whose verdicts are frozen one by one; of all that are scored the sums are frozen."""


class Reasons:
    """Sentences of reasons, each with a number. A reason is the numbers of its sentences, then the figures in them."""

    def __init__(self) -> None:
        path = HERE / "verdicts.json"
        self.sentences: list[str] = frozen("verdicts")["reasons"]["sentences"] if path.exists() else []

    def __call__(self, reason: str) -> list[list[float]]:
        parts = [re.sub(r"^response of .*", "response of another model", part) for part in reason.split("; ") if part]
        known = [re.sub(FIGURE, "#", part) for part in parts]
        self.sentences += [part for part in dict.fromkeys(known) if part not in self.sentences]
        figures = sorted(float(figure) for part in parts for figure in re.findall(FIGURE, part))
        return [sorted(self.sentences.index(part) for part in known), figures]


REASONS = Reasons()


@cache
def predictor(name: str) -> QualityPredictor:
    """A bundled predictor."""
    return QualityPredictor.load() if name == "quality" else metaprobe.load(f"bundled:{name}")  # type: ignore[call-overload]


def row(verdict: Verdict) -> list[Any]:
    return [verdict.score, verdict.heads, verdict.flagged, verdict.critical, REASONS(verdict.reason)]


def judged(judge: QualityPredictor, response: object) -> Verdict | str:
    """The verdict, or the class of the error in its place."""
    try:
        return judge.predict(response)
    except RecordError as error:
        return type(error).__name__


def summary(judge: QualityPredictor, responses: list[Any], rows: int = ROWS) -> dict[str, Any]:
    """Sums over all responses, and the verdicts of some."""
    every = [judged(judge, response) for response in responses]
    verdicts = [each for each in every if isinstance(each, Verdict)]
    # Both ways to score must say the same of every answer.
    many = judge.predict_many([r for r, each in zip(responses, every, strict=True) if isinstance(each, Verdict)])
    for one, other in zip(verdicts, many, strict=True):
        assert (one.flagged, one.reason) == (other.flagged, other.reason)
        assert math.isclose(one.score or one.critical or 0, other.score or other.critical or 0, abs_tol=1e-6)
    heads = sorted({name for each in verdicts for name in each.heads})
    return {
        "refused": dict(sorted(Counter(each for each in every if isinstance(each, str)).items())),
        "score": math.fsum(each.score for each in verdicts if each.score is not None),
        "heads": {name: math.fsum(each.heads[name] for each in verdicts) for name in heads},
        "critical": math.fsum(each.critical for each in verdicts if each.critical is not None),
        "flagged": [sum(each.flagged is answer for each in verdicts) for answer in (True, False, None)],
        "reasons": dict(sorted(Counter(json.dumps(REASONS(each.reason)[0]) for each in verdicts).items())),
        "rows": [row(each) for each in verdicts[:: max(1, -(-len(verdicts) // rows))]],
    }


@cache
def stores() -> dict[str, list[Any]]:
    """Calls of every recorded store, evenly spread; of `states` and `debates`, which still grow, none."""
    taken = {}
    growing = {*(RECORDED / "states").glob("*/*"), *(RECORDED / "debates").glob("*")}
    for path in sorted({each.parent for each in RECORDED.rglob("*.parquet")} - growing):
        calls = [call for each in RunStore(path).runs() for call in each.calls]
        taken[path.relative_to(RECORDED).as_posix()] = calls[:: max(1, -(-len(calls) // MOST))]
    return taken


def recorded(name: str) -> dict[str, Any]:
    return {store: summary(predictor(name), calls) for store, calls in stores().items()}


def flagged(_: Path) -> dict[str, Any]:
    """Flags by each kind of threshold that a caller can choose."""
    calls = stores()["qwen-metacog-eval"]
    found = {}
    for option, value in (("flag_below", 0.3), ("flag_rate", 0.2), ("catch", 0.5), ("risk", 0.5)):
        try:
            judge = metaprobe.load("bundled:quality", **{option: value})  # type: ignore[call-overload]
        except metaprobe.CheckpointError as error:
            found[option] = [type(error).__name__]
            continue
        verdicts = judge.predict_many(calls)
        found[option] = [judge.threshold, *(sum(v.flagged is answer for v in verdicts) for answer in (True, False))]
    return found


def formats(_: Path) -> dict[str, Any]:
    """Answers of every format: the Python call, and `metaprobe score` on the same as lines."""
    found = {}
    for path in FILES:
        response = json.loads(path.read_text(encoding="utf-8"))
        verdict = judged(predictor("quality"), response)
        found[path.relative_to(HERE.parent).as_posix()] = verdict if isinstance(verdict, str) else row(verdict)
    return found


def scored(folder: Path) -> dict[str, Any]:
    """Returns the output of `metaprobe score`: for lines, and for a run store."""
    lines = [{"id": path.stem, "response": json.loads(path.read_text(encoding="utf-8"))} for path in FILES]
    file = folder / "lines.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"id": \n', encoding="utf-8")
    found: dict[str, Any] = {}
    asked = {"lines": ("quality", file), "critical": ("critical", file)}
    asked["store"] = ("quality", RECORDED / "qwen-coder-0.5b-thinking")
    for name, (checkpoint, source) in asked.items():
        result = run("score", f"bundled:{checkpoint}", source)
        printed = [json.loads(line) for line in result.stdout.splitlines()]
        rows = [
            [one.get("line"), one.get("id"), one["score"], one["heads"], one["critical"], one["flagged"],
             REASONS(one["reason"]) if one["heads"] else bool(one["reason"])]
            for one in printed
        ]  # fmt: skip
        found[name] = {"exit": result.exit_code, "rows": rows}
    return found


def imported(folder: Path) -> dict[str, Any]:
    """Logs of other programs: what `metaprobe import` says of each, its labels, and the verdicts on its answers."""
    sources = [
        *sorted(LOGS.glob("inspect/*")),
        *sorted(LOGS.glob("lm-eval/samples_*")),
        *sorted(LOGS.glob("helm/*")),
        *sorted(LOGS.glob("promptfoo/*")),
        *sorted(LOGS.glob("openai-batch/*_output.jsonl")),
    ]
    found = {}
    for number, source in enumerate(sources):
        out = folder / str(number)
        result = run("import", source, "--out", out)
        about: dict[str, Any] = {"exit": result.exit_code}
        if result.stdout.startswith("{"):
            about |= json.loads(result.stdout)
        if out.exists():
            runs = sorted(RunStore(out).runs(), key=lambda one: one.id)
            labels = Counter(f"{label.name}={label.value:g}" for one in runs for label in one.labels)
            about["labels"] = dict(sorted(labels.items()))
            about["verdicts"] = summary(predictor("quality"), [call for one in runs for call in one.calls], rows=3)
        found[source.relative_to(LOGS).as_posix()] = about
    return found


def choice(tokens: list[tuple[str, float]], text: str | None = None, end: str | None = "stop", **more: Any) -> Any:
    """An OpenAI chat completion of these tokens."""
    content = [{"token": token, "logprob": logprob, **more} for token, logprob in tokens]
    said = "".join(token for token, _ in tokens) if text is None else text
    part = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": end}
    return {"object": "chat.completion", "model": "m", "choices": [part | {"logprobs": {"content": content}}]}


WORDS = [(" Paris", -0.1), (" is", -0.4), (" the", -0.02), (" capital", -1.3), (" of", -0.01), (" France", -0.6)]
ODD: dict[str, Any] = {
    "sound": choice(WORDS),
    "sound, as a list": [logprob for _, logprob in WORDS],
    "sound, in bytes": choice([("bytes:\\xc3\\xa9", -0.2), (" ok", -0.1)], "é ok"),
    "tokens of the end only": choice(WORDS[-3:], "Paris is the capital of France"),
    "tokens of another word": choice([*WORDS[:-1], (" Spain", -0.6)], " Paris is the capital of France"),
    "aborted": choice(WORDS, end="abort"),
    "an unknown end": choice(WORDS, end="bananas"),
    "no end": choice(WORDS, end=None),
    "cut": choice(WORDS, end="length"),
    "an end by its token": choice([*WORDS, ("<|im_end|>", -0.01)], " Paris is the capital of France"),
    "filtered": choice(WORDS, end="content_filter"),
    "zeros in place of numbers": choice([(token, 0.0) for token, _ in WORDS]),
    "first a number, then zeros": choice([WORDS[0], *((token, 0.0) for token, _ in WORDS[1:])]),
    "-9999 in place of a number": choice([(token, -9999.0) for token, _ in WORDS]),
    "above 0": choice([(token, 0.5) for token, _ in WORDS]),
    "null": choice([(token, None) for token, _ in WORDS]),  # type: ignore[misc]
    "a text in place of a number": choice([(token, "-0.1") for token, _ in WORDS]),  # type: ignore[misc]
    "an alternative drawn twice": choice(WORDS, top_logprobs=[{"token": "a", "logprob": -0.2}] * 2),
    "alternatives above 1 in sum": choice(WORDS, top_logprobs=[{"token": t, "logprob": -0.1} for t in "abc"]),
    "no tokens": choice([]),
    "no log-probabilities": {"choices": [{"message": {"content": "Paris"}, "finish_reason": "stop"}]},
    "a refusal": {"choices": [{"message": {"content": None, "refusal": "no"}, "finish_reason": "stop"}]},
    "a tool call": {"choices": [{"message": {"tool_calls": [{"id": "a"}]}, "finish_reason": "tool_calls"}]},
    "no choices": {"choices": []},
    "an error": {"error": {"message": "overloaded"}},
    "nothing": {},
    "an empty list": [],
    "a failed response": {"object": "response", "status": "failed", "error": {"message": "x"}, "output": []},
    "two answers": {**choice(WORDS), "choices": choice(WORDS)["choices"] + choice(WORDS[:2])["choices"]},
    "one token": choice(WORDS[:1]),
    "damaged text": '{"choices": [',
    "a number": 5,
}
"""Answers that must be refused, or whose verdict must say what is doubtful, beside sound ones."""


def odd(_: Path) -> dict[str, Any]:
    found = {}
    for name, response in ODD.items():
        for checkpoint in ("quality", "critical"):
            verdict = judged(predictor(checkpoint), response)
            found[f"{name}, {checkpoint}"] = verdict if isinstance(verdict, str) else row(verdict)
    return found


def gated(_: Path) -> dict[str, Any]:
    """The token at which the gate fires, its action, and the last score."""
    gate, found = metaprobe.load("bundled:gate"), {}
    calls = [call for call in stores()["gsm8k-samples"] if call.logprobs is not None][:60]
    for number, call in enumerate(calls):
        stream = gate.start(model=call.model, logprobs_mode="raw")
        actions = [stream.push(float(logprob)) for logprob in call.logprobs]
        fired = next((place for place, action in enumerate(actions, 1) if action != "continue"), 0)
        found[str(number)] = [fired, actions[-1], stream.score]
    return found


def routed(folder: Path) -> dict[str, Any]:
    """Decisions of the bundled router: before anybody is asked, and after one agent or two."""
    lines = []
    for number, each in enumerate(RunStore(RECORDED / "metacog-every-agent").runs()):
        if number % 20:
            continue
        stated = [one for one in each.statements if one.kind == "confidence"]
        answers = {call.agent: call.text for call in each.calls if call.stage == "answer"}
        known = {one.call_id.rpartition("/")[2]: one.value for one in stated}
        agents = {name: {"answer": text, "confidence": known.get(name)} for name, text in sorted(answers.items())}
        line = {"question": each.item.question, "dimension": each.item.dimension}
        lines += [
            {"id": f"{number}-{count}", **line, "agents": dict(list(agents.items())[:count])} for count in range(3)
        ]
    file = folder / "lines.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    printed = [json.loads(line) for line in done("route", "bundled:router", file).splitlines()]
    return {one["id"]: [one["action"], one["agent"], one["expected"]] for one in printed}


def probed(_: Path) -> dict[str, Any]:
    """Probabilities of the bundled probes on made-up states."""
    found = {}
    for model in ("smollm2-135m", "qwen-coder-0.5b", "qwen-coder-1.5b"):
        for kind in ("confidence", "difficulty"):
            probe = metaprobe.load(f"bundled:{model}-{kind}")
            width = probe.checkpoint.manifest.contract["width"]
            states = np.random.default_rng(5).normal(size=(5, width)).astype(np.float32)
            found[f"{model}-{kind}"] = probe.probability(states).tolist()
    return found


def reasons(_: Path) -> dict[str, Any]:
    return {"sentences": REASONS.sentences}


PARTS = {
    "quality": lambda _: recorded("quality"),
    "critical": lambda _: recorded("critical"),
    "flagged": flagged,
    "formats": formats,
    "scored": scored,
    "imported": imported,
    "odd": odd,
    "gated": gated,
    "routed": routed,
    "probed": probed,
    "reasons": reasons,
}


@pytest.mark.parametrize("part", [name for name in PARTS if name != "reasons"])
def test_verdicts_are_what_they_were(part: str, tmp_path: Path) -> None:
    check("verdicts", part, PARTS[part](tmp_path))
    assert len(REASONS.sentences) == len(frozen("verdicts")["reasons"]["sentences"]), REASONS.sentences[-3:]
