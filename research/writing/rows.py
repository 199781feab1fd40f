"""Writes the rows of the task sets `writing-cases` and `writing-turns`: `python -m research.writing.rows`."""

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

from metaprobe.records.types import Item
from metaprobe_writing_assistant.system.contract import Profile, Turn, item_of_turn
from metaprobe_writing_assistant.task_sets import CASES_FILE, TURNS_FILE
from research.writing.cases import CASES
from research.writing.templates import SENTENCES, SIZES, TEMPLATES, TOPICS


def cases() -> Iterator[Item]:
    """The inputs of the four cases, in order; each has those before it as its history."""
    for number, case in enumerate(CASES, start=1):
        history = [("user", case.introduction)]
        for place, step in enumerate(case.steps, start=1):
            yield item_of_turn(
                Turn(Profile(), step.draft, step.message, tuple(history)),
                f"writing-cases/{number}-{place}",
                group=f"case-{number}",
                dimension=case.name,
                level=step.stage,
                fields={"stage": step.stage, "reasoning": step.reasoning},
            )
            history.append(("user", step.message))


def turns() -> Iterator[Item]:
    """Every template with every topic. A template without a slot gives one turn for each text in the editor."""
    for template in TEMPLATES:
        seen = set()
        for number, (topic, side) in enumerate(TOPICS):
            size = template.drafts[number % len(template.drafts)]
            draft = " ".join(SENTENCES[: SIZES[size]]).format(topic=topic, side=side)
            message = template.message.format(topic=topic, side=side)
            if (message, draft) in seen:
                continue
            seen.add((message, draft))
            yield item_of_turn(
                Turn(Profile(), draft, message),
                f"writing-turns/{template.name}-{number + 1}",
                group=template.name,
                dimension=template.stage,
                level=template.reasoning,
                fields={"stage": template.stage, "reasoning": template.reasoning},
            )


def write(path: Path, items: Iterator[Item], task: str) -> int:
    """Writes items, one a line, as `read_items` reads them, and returns how many."""
    lines = []
    for item in items:
        told = {name: value for name, value in dataclasses.asdict(item).items() if value}
        lines.append(json.dumps({**told, "task": task, "check": "none"}, ensure_ascii=False))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return len(lines)


if __name__ == "__main__":
    print(write(CASES_FILE, cases(), "writing-cases"), "turns of cases")
    print(write(TURNS_FILE, turns(), "writing-turns"), "labelled turns")
