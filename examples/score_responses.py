"""Scores responses and lists them, the doubtful ones first. The base install is enough.

python examples/score_responses.py [RESPONSES.jsonl] [--checkpoint FOLDER]

Lines are chat completions that were requested with logprobs=True. Without a checkpoint, the bundled one is used.
"""

import json
from pathlib import Path

import click

from metaprobe import QualityPredictor
from metaprobe.records.errors import InvalidResponse

HERE = Path(__file__).parent


@click.command()
@click.argument("responses", type=click.Path(exists=True, path_type=Path), default=HERE / "responses.jsonl")
@click.option("--checkpoint", type=click.Path(exists=True, path_type=Path))
def main(responses: Path, checkpoint: Path | None) -> None:
    predictor = QualityPredictor.load(checkpoint) if checkpoint else QualityPredictor.load()
    scored = []
    for line in responses.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        try:
            verdict = predictor.predict(record["response"])
        except InvalidResponse as error:  # says what came and what was expected
            print(f"{record['id']}: not scored: {error}")
            continue
        if verdict.score is not None:  # None where the predictor abstains, with the reason in verdict.reason
            scored.append((verdict.score, verdict.flagged, record))
    for score, flagged, record in sorted(scored, key=lambda row: row[0]):
        answer = record["response"]["choices"][0]["message"]["content"].partition("\n")[0]
        print(f"{score:.2f} {'flagged' if flagged else '       '} {record['id']}: {answer[:60]}")


if __name__ == "__main__":
    main()
