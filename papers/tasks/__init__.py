"""Task sets: items, how answers to them are measured, and what guessing reaches."""

from metaprobe.papers.tasks.named_tasks import TASKS, load_task
from metaprobe.papers.tasks.task import Task

__all__ = ["TASKS", "Task", "load_task"]
