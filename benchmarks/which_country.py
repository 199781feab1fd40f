"""One template, many facts: "In which country is ...?" - where hidden-state probes have it easier than on MetaCog-Eval.

python benchmarks/which_country.py place_country_popularity/data.jsonl --out out/which-country

The data set (MIT, wesg52/world-models) is not part of this repository. Of its 3,000 places
the first N in the order of a hash are asked about directly, and compared by the recipe of the demo. Groups are places.
"""

import hashlib
import json
from pathlib import Path

import click

from metaprobe.eval.report.text import comparison_table
from metaprobe.records.importer import iter_json_lines
from metaprobe.training.launch import Plan, launch
from metaprobe.training.study import study, write_comparison


@click.command()
@click.argument("data", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/which-country"), show_default=True)
@click.option("--n", default=1000, show_default=True, help="Places asked about.")
@click.option("--llm", "model", default="smollm2-135m", show_default=True)
def main(data: Path, out: Path, n: int, model: str) -> None:
    """Collect, compare, print."""
    rows = sorted(
        (row for _, row in iter_json_lines(data)), key=lambda row: hashlib.sha256(str(row["id"]).encode()).digest()
    )
    items = out / "items.jsonl"
    out.mkdir(parents=True, exist_ok=True)
    with items.open("w", encoding="utf-8") as file:
        for row in rows[:n]:
            level = ("rare", "medium", "famous")[min(int(row["popularity_decile"]) // 4, 2)]
            item = {"id": row["id"], "question": row["question"], "gold": row["country"], "level": level}
            file.write(json.dumps(item | {"dimension": "which country"}) + "\n")
    plan = Plan(system="self-report", task=str(items), llms=(model,), variants=("direct",), capture="every:3")
    collected = launch(plan, out / "runs")
    click.echo(f"{collected.done} runs collected, {collected.stored_before} were there", err=True)
    comparison, report = write_comparison(out / "report", study([out / "runs"]), command="which_country.py")
    click.echo(comparison_table(comparison))
    click.echo(report)


if __name__ == "__main__":
    main()
