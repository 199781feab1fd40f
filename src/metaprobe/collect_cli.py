"""`metaprobe collect`: a system over a task, every call kept."""

import sys
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from metaprobe.progress import live_collection
from metaprobe.terminal import FILE, FOLDER, FOLDER_THERE, say_collected


def _complete_system(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from metaprobe.pipelines.named_systems import system_names

    return [name for name in system_names() if name.startswith(incomplete)]


def _complete_task(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from metaprobe.tasks.named_tasks import task_names

    names = [CompletionItem(name) for name in task_names() if name.startswith(incomplete)]
    return names or [CompletionItem(incomplete, type="file")]


class CollectCommand(click.Command):
    """Lists at the end of its help the systems and tasks that there are, those of installed packages too."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from metaprobe.pipelines.named_systems import system_names
        from metaprobe.tasks.named_tasks import task_names

        for title, names in (("Systems", system_names()), ("Tasks", task_names())):
            with formatter.section(title):
                formatter.write_text(", ".join(names))


@click.command(cls=CollectCommand, short_help="Run a system over a task; keep every call.")
@click.argument("system", shell_complete=_complete_system)
@click.option(
    "--task",
    required=True,
    shell_complete=_complete_task,
    help="Name of a task set, a .jsonl or .csv file of items, or MODULE:NAME of one of your own.",
)
@click.option("--data", help="Folder that holds the task's data, or 'hf:OWNER/NAME'; METAPROBE_DATA by default.")
@click.option("--split", help="Split of the task set.")
@click.option("--task-seed", type=int, help="Seed of a task whose items are drawn.")
@click.option(
    "--llm",
    multiple=True,
    default=("smollm2-135m",),
    show_default=True,
    help="Embedded name, folder, GGUF file, hub id, vllm: before one of these, or openai:MODEL[@URL]. NAME=L for one "
    "stage or agent; repeatable.",
)
@click.option("--judge", help="Model of every stage called 'judge'.")
@click.option(
    "--api",
    multiple=True,
    help="KEY=VALUE for openai: models, such as logprobs_mode=raw or extra_body={...}; repeatable.",
)
@click.option(
    "--prices",
    type=FILE,
    help='For openai: models: {"MODEL": {"prompt": USD, "completion": USD}} for a million tokens each.',
)
@click.option(
    "--policy",
    default="paper",
    show_default=True,
    help="'paper', 'exhaustive', 'review' (of a debate's arguments) or 'learned:CHECKPOINT' (a router), with "
    "constants: 'paper:theta=0.4', 'review:critical=0.3', 'learned:CHECKPOINT,budget=0.5,theta=0.4'; "
    "or MODULE:NAME of your own.",
)
@click.option(
    "--epsilon",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0, 1),
    help="Share of decisions drawn evenly, to explore.",
)
@click.option(
    "--signal",
    multiple=True,
    help="confidence|difficulty|quality|critical[@AGENT]=[stated+]CHECKPOINT in place of what the model states; "
    "repeatable. One that nothing would read is refused.",
)
@click.option("--agent", multiple=True, help="Name of an agent, in place of the system's own; repeatable.")
@click.option("--out", type=FOLDER, required=True, help="Run store; collecting into it again resumes.")
@click.option("--limit", type=click.IntRange(1), help="Only so many items, spread evenly over dimensions and levels.")
@click.option("--variant", multiple=True, help="This variant of the system; repeatable.")
@click.option("--prompts", type=FOLDER_THERE, help="Folder with your own prompt files, in place of the shipped ones.")
@click.option("--layers", help="Layers whose hidden states are kept: 'all', 'every:N', or '0,8,16'.")
@click.option("--top-logprobs", default=0, show_default=True, type=click.IntRange(0), help="Alternatives kept a token.")
@click.option("--batch-size", default=32, show_default=True, type=click.IntRange(1), help="Requests generated at once.")
@click.option("--concurrency", default=128, show_default=True, type=click.IntRange(1), help="Runs in flight.")
@click.option("--shard-runs", default=64, show_default=True, type=click.IntRange(1), help="Runs written to one file.")
@click.option(
    "--tokens",
    multiple=True,
    metavar="STAGE=N",
    help="Most tokens of a call at this stage, or at every one; 'none': an endpoint does not cut. Repeatable.",
)
@click.option(
    "--constant",
    multiple=True,
    metavar="NAME=VALUE",
    help="Constant of the system, such as rounds; a wrong name lists those there are. Repeatable.",
)
@click.option(
    "--profiles",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File of outcomes that the agents' profiles begin with, and that this collection's are added to.",
)
@click.option(
    "--wave",
    default=8,
    show_default=True,
    type=click.IntRange(1),
    help="Items at once where agents learn; the next ones see what came of them.",
)
@click.option("--text/--no-text", default=True, help="Keep texts and token ids, or only numbers, labels and ids.")
@click.option("--cache", type=click.Path(dir_okay=False, path_type=Path), help="File of calls shared by collections.")
@click.option(
    "--seed",
    default=0,
    show_default=True,
    type=click.IntRange(0, 2**32 - 1),
    help="Seed of sampled answers and exploration.",
)
def collect(out: Path, **named: Any) -> None:
    """Run SYSTEM over a task with a model, and keep every call with its log-probabilities.

    SYSTEM is a name, or MODULE:NAME of a system of your own: a module that is installed, or lies in this folder.
    """
    from metaprobe.collecting.launch import CollectionPlan, CollectionWatch, launch

    # After what is installed, so that no file of this folder takes the place of a library.
    sys.path.append(str(Path.cwd()))
    plan = CollectionPlan(**named)
    with live_collection() as live:
        report = launch(plan, out, CollectionWatch(live.on_estimate, live.on_total, live.on_call, live.on_run))
    say_collected(report)
    if report.failed:
        sys.exit(1)
