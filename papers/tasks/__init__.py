"""Task sets: items, metrics of the answers to them, and the results of guessing."""

from metaprobe.papers.tasks.named_tasks import TASKS, load_task
from metaprobe.papers.tasks.task import Task

__all__ = ["TASKS", "Task", "load_task"]
