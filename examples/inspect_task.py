"""A task of Inspect whose log holds verdicts beside Inspect's own scores, and what can be learned from that log.

pip install inspect-ai openai
python examples/inspect_task.py --url http://127.0.0.1:8000/v1 --model NAME

The verdict is a scorer like any other. `metaprobe import` then reads the log: answers, log-probabilities, and the first
score of Inspect's as the label, from which `train quality`, `compare` and `adapt` learn.
"""

from pathlib import Path

import click

from metaprobe import RunStore, import_file

QUESTIONS = {"Name the capital of Kenya.": "Nairobi", "Name the capital of Peru.": "Lima"}


@click.command()
@click.option("--url", required=True, help="Base URL of an OpenAI-compatible server, with /v1.")
@click.option("--model", required=True)
@click.option("--out", type=click.Path(path_type=Path), default=Path("out/examples/inspect"))
def main(url: str, model: str, out: Path) -> None:
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.model import GenerateConfig, get_model
    from inspect_ai.scorer import includes

    from metaprobe.production.inspect_scorer import verdict

    task = Task(
        dataset=[Sample(input=question, target=target) for question, target in QUESTIONS.items()],
        scorer=[includes(), verdict("bundled:quality", log=str(out / "scores.sqlite"))],
        config=GenerateConfig(logprobs=True),
    )
    out.mkdir(parents=True, exist_ok=True)
    asked = get_model(f"openai-api/local/{model}", base_url=url, api_key="none")
    (log,) = eval(task, model=asked, log_dir=str(out / "logs"), display="none")
    for sample in log.samples or []:
        told = {name: score.value for name, score in (sample.scores or {}).items()}
        print(f"{sample.input} -> {sample.output.completion.strip()!r}: {told}")
    report = import_file(Path(log.location), RunStore(out / "runs"))
    print(f"{report.imported} answers in {out / 'runs'}: metaprobe advise {log.location}")


if __name__ == "__main__":
    main()
