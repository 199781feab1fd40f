"""`metaprobe outcomes`: import files, one an agent, into what a router learns from."""

import json
from pathlib import Path

import click

from metaprobe.terminal import FILE


@click.command(short_help="Answers of several agents into the outcomes that a router learns from.")
@click.argument("files", type=FILE, nargs=-1, required=True)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="File of outcomes to write."
)
@click.option(
    "--signal",
    "signals",
    multiple=True,
    help="confidence[@AGENT]=[stated+]CHECKPOINT: what a checkpoint reads of the answers in place of what is stated; "
    "repeatable.",
)
@click.option(
    "--prices", type=FILE, help='{"AGENT or MODEL": {"prompt": USD, "completion": USD}} for a million tokens each.'
)
def outcomes(files: tuple[Path, ...], out: Path, signals: tuple[str, ...], prices: Path | None) -> None:
    """Join the answers of two or more agents, one a file of import lines, by their ids.

    A line is one that `metaprobe import` takes, with "id" and "labels": {"correct": 0 or 1}. The agent is its "agent",
    else the name of the file. `metaprobe train router OUT` learns from what comes out.
    """
    from metaprobe.collecting.joining import join_outcomes
    from metaprobe.llms.pricing import read_prices
    from metaprobe.probes.source import SignalSource
    from metaprobe.records.outcomes import write_outcomes

    if out.resolve() in {file.resolve() for file in files}:
        raise click.UsageError(f"--out {out} is one of the files to join; give another one")
    joined = join_outcomes(files, signals=SignalSource.load(signals), prices=read_prices(prices) if prices else None)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_outcomes(out, joined.questions)
    for note in joined.notes:
        click.echo(note, err=True)
    click.echo(
        json.dumps(
            {
                "questions": len(joined.questions),
                "agents": {name: joined.accuracy(name) for name in joined.questions[0].agents},
                "missing": joined.missing,
                "unlabelled": joined.unlabelled,
            }
        )
    )
