"""Task sets: items that a program can check."""

from metaprobe.eval.tasks.loading import TASKS, load_task

__all__ = ["TASKS", "load_task"]
