"""Reads the prompts of all tasks once with the embedded reader; resumable. `python -m research.before.states DATA`."""

import sys
from pathlib import Path

from metaprobe.training.prompt_states import prompt_states, reader_files
from research.before.tasks import TASKS, outcomes


def main(data: Path) -> None:
    """Reads the prompts task by task."""
    files = None
    for task in TASKS:
        prompts = [question.question for question in outcomes(task, data)]
        files = files or reader_files("smollm2-135m", prompts)
        prompt_states(files, prompts, on_step=lambda line, task=task: print(task, line, flush=True))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
