"""Reads the prompts of all tasks, or of one, once with the embedded reader; resumable.

python -m research.before.states DATA [TASK]

Prompts are read in the drawn order, a few hundred at a time, so that a reading that was stopped holds the first
questions of a task and no others.
"""

import sys
from pathlib import Path

from metaprobe.training.recipes.prompt_states import prompt_states, reader_files
from research.before.tasks import TASKS, outcomes

TURN = 128
"""Prompts of a task that are read before what was read is kept."""
FIRST = 800
"""Prompts of the first tasks' rows that are read before any task is finished."""


def main(data: Path, only: str = "") -> None:
    """Reads the first prompts of every task, and then the others; `only`: the one task that is read."""
    prompts = {task: [question.question for question in outcomes(task, data)] for task in TASKS}
    files = reader_files("smollm2-135m", prompts["places"])
    reader = files.reader()
    for begin, end in ((0, FIRST), (FIRST, None)):
        for task, texts in prompts.items():
            if only not in ("", task):
                continue
            part = texts[begin:end]
            for start in range(0, len(part), TURN):
                prompt_states(files, part[start : start + TURN], reader=reader)
                print(task, begin + start + len(part[start : start + TURN]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
