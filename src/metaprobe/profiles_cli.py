"""`metaprobe label` and `metaprobe profiles`: what becomes known of answers later, and what agents learn from it."""

import json
from pathlib import Path

import click

from metaprobe.terminal import FILE, RUNS


@click.command(short_help="Labels by hand or by a judge, for answers that no program can check.")
@click.argument("runs", type=RUNS)
@click.argument("file", type=FILE, required=False)
def label(runs: Path, file: Path | None) -> None:
    """List the answers in RUNS that nobody has judged; or take their labels from FILE.

    Each line: {"call": ID, "correct": null, ...}. Fill in `correct` (0 to 1), by hand or by a judge, who says so:
    "source": "judge:NAME". A person's label goes before a program's, and a program's before a judge's.
    """
    from metaprobe.collecting.labels import add_labels, find_unlabelled, read_labels, unknown_systems
    from metaprobe.records.store import RunStore

    if file is None:
        stored = list(RunStore(runs))
        for line in find_unlabelled(stored):
            click.echo(json.dumps(line))
        for name, count in unknown_systems(stored).items():
            click.echo(f"runs passed over, whose system {name!r} is not known here (docs/own.md): {count}", err=True)
        return
    labels = read_labels(file)
    click.echo(json.dumps({"labels": len(labels), "new": add_labels(RunStore(runs), labels)}))


@click.command(short_help="Stored outcomes into a file that `collect --profiles` begins with.")
@click.argument("runs", type=RUNS, nargs=-1, required=True)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="Profile file to add to.")
@click.option("--every-answer", is_flag=True, help="Of every agent that answered, not only of those that were chosen.")
def profiles(runs: tuple[Path, ...], out: Path, every_answer: bool) -> None:
    """Fold the outcomes of RUNS, in the order in which they were stored, into a profile file.

    An outcome that is there already counts once; where its label was corrected, the new one takes its place.
    """
    from metaprobe.collecting.labels import fold_profiles

    click.echo(json.dumps(fold_profiles(runs, out, every=every_answer)))
