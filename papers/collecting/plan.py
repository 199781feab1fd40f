"""The options of `metaprobe collect`: what is collected, by names. Nothing heavy is imported here."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from metaprobe.api import Option

Requests = Annotated[int, Option("Requests generated at once.", low=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionPlan:
    """Names of everything that is collected."""

    system: Annotated[str, Option(kind="system", argument=True)]
    """A name, or `MODULE:NAME` for a system of your own (`metaprobe.papers.systems.load_system`)."""
    task: Annotated[
        str,
        Option("Name of a task set, a .jsonl or .csv file of items, or MODULE:NAME of one of your own.", kind="task"),
    ]
    data: Annotated[
        str | None,
        Option("Folder that holds the task's data, or 'hf:OWNER/NAME'; METAPROBE_DATA by default."),
    ] = None
    split: Annotated[str | None, Option("Split of the task set.")] = None
    """The default is the first split."""
    task_seed: Annotated[int | None, Option("Seed of a task whose items are drawn.")] = None
    llm: Annotated[
        Sequence[str],
        Option(
            "Embedded name, folder, GGUF file, hub id, vllm: before one of these, or openai:MODEL[@URL]. NAME=L for "
            "one stage or agent; repeatable."
        ),
    ] = ("smollm2-135m",)
    judge: Annotated[str | None, Option("Model of every stage called 'judge'.")] = None
    api: Annotated[
        Sequence[str],
        Option(
            "KEY=VALUE for openai: models, such as logprobs_mode=raw or extra_body={...}; repeatable.",
        ),
    ] = ()
    """Keys are those of `llms.model_name.API_OPTIONS`; values are JSON or plain text."""
    prices: Annotated[
        Path | None,
        Option(
            'For openai: models: {"MODEL": {"prompt": USD, "completion": USD}} for a million tokens each.',
            kind="file",
        ),
    ] = None
    policy: Annotated[
        str,
        Option(
            "'paper', 'exhaustive', 'review' (of a debate's arguments) or 'learned:CHECKPOINT' (a router), with "
            "constants: 'paper:theta=0.4', 'review:critical=0.3', 'learned:CHECKPOINT,budget=0.5,theta=0.4'; "
            "or MODULE:NAME of your own."
        ),
    ] = "paper"
    panel: Annotated[
        Path | None,
        Option("Panel that keeps one of several answers, for the variants called panel.", kind="checkpoint"),
    ] = None
    epsilon: Annotated[float, Option("Share of decisions drawn evenly, to explore.", low=0, high=1)] = 0.0
    signal: Annotated[
        Sequence[str],
        Option(
            "confidence|difficulty|quality|critical[@AGENT]=[stated+]CHECKPOINT in place of what the model states; "
            "repeatable. A signal that nothing reads is refused."
        ),
    ] = ()
    agent: Annotated[Sequence[str], Option("Name of an agent, in place of the system's own; repeatable.")] = ()
    limit: Annotated[int | None, Option("Most items, spread evenly over dimensions and levels.", low=1)] = None
    variant: Annotated[Sequence[str], Option("This variant of the system; repeatable.")] = ()
    """By default the system's own default variants."""
    prompts: Annotated[
        Path | None,
        Option("Folder with your own prompt files, in place of the shipped ones.", kind="folder to read"),
    ] = None
    layers: Annotated[str | None, Option("Layers whose hidden states are kept: 'all', 'every:N', or '0,8,16'.")] = None
    top_logprobs: Annotated[int, Option("Alternatives kept for each token.", low=0)] = 0
    batch_size: Requests = 32
    concurrency: Annotated[int, Option("Runs in flight.", low=1)] = 128
    shard_runs: Annotated[int, Option("Runs written to one file.", low=1)] = 64
    tokens: Annotated[
        Sequence[str],
        Option(
            "Most tokens of a call at this stage; N alone: at every one; 'none': no limit at an endpoint. Repeatable.",
            metavar="STAGE=N",
        ),
    ] = ()
    constant: Annotated[
        Sequence[str],
        Option(
            "Constant of the system, such as rounds; an unknown name lists all. Repeatable.",
            metavar="NAME=VALUE",
        ),
    ] = ()
    wave: Annotated[
        int, Option("Items at once if agents learn; later items see the outcomes of earlier ones.", low=1)
    ] = 8
    text: Annotated[bool, Option("Keep texts and token ids, or only numbers, labels and ids.")] = True
    cache: Annotated[Path | None, Option("File of calls shared by collections.", kind="new file")] = None
    """File of finished calls. The default is a file in the store, which is removed when all runs are stored."""
    seed: Annotated[int, Option("Seed of sampled answers and exploration.", low=0, high=2**32 - 1)] = 0
