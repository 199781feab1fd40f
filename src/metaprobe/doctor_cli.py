"""`metaprobe doctor`: what an endpoint really gives of log-probabilities, and what to set."""

import asyncio
import json
import os
import sys
from dataclasses import asdict, replace
from typing import Any

import click

from metaprobe.checkpoints.table import Table
from metaprobe.records.errors import MissingExtra, RecordError
from metaprobe.records.extras import require


def _object(ctx: click.Context, param: click.Parameter, value: str | None) -> dict[str, Any]:
    try:
        held = json.loads(value or "{}")
    except (ValueError, RecursionError):
        held = None
    if not isinstance(held, dict):
        raise click.BadParameter(f"{value!r} is no JSON object; expected one, such as '{{\"top_k\": 0}}'")
    return held


def _line(words: str, key: str) -> str:
    """What a server said, on one line, without the key and without control characters for the terminal."""
    shown = words.replace(key, "[secret]") if key else words
    return "".join(c for c in " ".join(shown.split()) if c.isprintable())


@click.command(short_help="What an endpoint gives, drops or fakes of log-probabilities.")
@click.argument("url")
@click.argument("model")
@click.option(
    "--api-key-env",
    "key_variable",
    default="OPENAI_API_KEY",
    show_default=True,
    help="Environment variable that holds the key; the key itself is never shown.",
)
@click.option(
    "--timeout",
    "timeout_s",
    default=60.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Seconds that one answer may take.",
)
@click.option(
    "--thinking-tokens",
    default=512,
    show_default=True,
    type=click.IntRange(0),
    help="Tokens that a model which thinks may use before each answer.",
)
@click.option("--extra-body", callback=_object, help="Further fields of every request, as a JSON object.")
@click.option("--json", "as_json", is_flag=True, help="Write the findings as one JSON object.")
def doctor(url: str, model: str, as_json: bool, **options: Any) -> None:
    """Ask the OpenAI-compatible endpoint at URL (it usually ends in /v1) at most 12 small questions of MODEL.

    Says what it gives, drops, shifts or fakes of log-probabilities, and what to set. Ends with 0 if its answers can be
    scored, with 1 if a fault makes scores wrong or impossible, with 2 if it could not be asked.
    """
    try:
        asking = require("metaprobe.llms.doctor", "api")
        findings = require("metaprobe.llms.doctor_findings", "api")
        said = asyncio.run(asking.Interviewer(url, model, **options).ask_all())
    except (RecordError, MissingExtra) as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2)
    key = os.environ.get(options["key_variable"], "").strip()
    found = [replace(one, found=_line(one.found, key)) for one in findings.diagnose(said)]
    faults = sum(one.verdict == "fault" for one in found)
    spent = {
        "requests": said.requests,
        "prompt_tokens": said.prompt_tokens,
        "completion_tokens": said.completion_tokens,
        "seconds": round(said.seconds, 1),
    }
    if as_json:
        report = {"endpoint": said.endpoint, "model": model, "engine": findings.engine_of(said), "usable": not faults}
        click.echo(json.dumps(report | {"findings": [asdict(one) for one in found], "spent": spent}))
    else:
        rows = []
        for one in found:
            rows += [(one.verdict, one.check, one.found), *([("", "", f"-> {one.do}")] if one.do else [])]
        click.echo("\n".join(Table.of(("verdict", "check", "found"), rows).text(width=None)))
        end = "usable for scoring" if not faults else f"faults that make scores wrong or impossible: {faults}"
        tokens = f"{said.prompt_tokens} tokens read and {said.completion_tokens} written"
        click.echo(f"\n{end}; spent {said.requests} requests, {tokens}, {said.seconds:.1f} s")
    sys.exit(1 if faults else 0)
