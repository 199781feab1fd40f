"""Commands on servers: `metaprobe serve` answers requests, `metaprobe doctor` examines an endpoint."""

import asyncio
import json
import os
import sys
from dataclasses import asdict, replace
from typing import Annotated, Any

import click

from metaprobe.checkpoints.options import Option
from metaprobe.checkpoints.table import Table
from metaprobe.option_commands import Fields, command
from metaprobe.records.errors import MissingExtra, RecordError
from metaprobe.records.extras import require
from metaprobe.serving.http.settings import Settings

COMMANDS = click.Group()


@command(COMMANDS, "Score over HTTP, and stand in front of an OpenAI-compatible API.")
def serve(
    settings: Annotated[dict[str, Any], Fields(Settings)],
    checkpoint: Annotated[tuple[str, ...], Option(kind="named checkpoint", argument=True)] = (),
) -> None:
    """Score answers over HTTP with a quality predictor, and stand in front of an OpenAI-compatible API.

    POST /v1/score takes a response, or {"responses": [...]}. POST /v1/chat/completions asks the upstream and adds
    the verdict under "metaprobe"; so do /v1/completions and /v1/responses where they have log-probabilities. GET
    /v1/models is the upstream's list, GET /metrics is for Prometheus, GET /readyz says that it is ready, and GET
    /openapi.json names all. With --log, POST /v1/feedback takes labels for what was answered.

    With --panel C --upstream NAME=URL --upstream NAME=URL, the panel chooses among the upstreams for each chat
    completion, asks on while another answer is worth its price, and "metaprobe.panel" says what was asked and spent.
    Without a CHECKPOINT, bundled:quality then scores what is logged.

    Several CHECKPOINTS judge the answers of one model each: NAME=CHECKPOINT, or those that it was trained on. The first
    judges all others as well. SIGHUP takes in what their places hold now.

    Keys are read from the environment, never from the command line.
    """
    from metaprobe.serving.http.app import serve as run

    if not checkpoint and settings["panel"] is None:
        raise click.UsageError("Missing CHECKPOINT: name a quality predictor, or give --panel with --upstream NAME=URL")
    first, *more = checkpoint or ("bundled:quality",)
    run(Settings(**settings | {"checkpoint": first, "more_checkpoints": tuple(more)}))


@command(COMMANDS, "What an endpoint gives, drops or fakes of log-probabilities.")
def doctor(
    url: Annotated[str, Option(argument=True)],
    model: Annotated[str, Option(argument=True)],
    key_variable: Annotated[
        str,
        Option(
            "Environment variable that holds the key; the key itself is never shown.",
            name="api-key-env",
        ),
    ] = "OPENAI_API_KEY",
    timeout_s: Annotated[float, Option("Seconds that one answer may take.", name="timeout", above=0)] = 60.0,
    thinking_tokens: Annotated[
        int, Option("Tokens that a model which thinks may use before each answer.", low=0)
    ] = 512,
    extra_body: Annotated[
        dict[str, Any] | None, Option("Further fields of every request, as a JSON object.", kind="json object")
    ] = None,
    as_json: Annotated[bool, Option("Write the findings as one JSON object.", name="json")] = False,
) -> None:
    """Ask the OpenAI-compatible endpoint at URL (it usually ends in /v1) at most 10 small questions of MODEL.

    Says what it gives, drops, shifts or fakes of log-probabilities, and what to set. Ends with 0 if its answers can be
    scored, with 1 if a fault makes scores wrong or impossible, with 2 if it could not be asked.
    """
    try:
        examining = require("metaprobe.llms.doctor", "api")
        interviewer = examining.Interviewer(
            url,
            model,
            key_variable=key_variable,
            timeout_s=timeout_s,
            thinking_tokens=thinking_tokens,
            extra_body=extra_body or {},
        )
        answers = asyncio.run(interviewer.ask_all())
    except (RecordError, MissingExtra) as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2)
    key = os.environ.get(key_variable, "").strip()
    checks = [replace(one, found=_line(one.found, key)) for one in examining.diagnose(answers)]
    faults = sum(one.verdict == "fault" for one in checks)
    if as_json:
        report = {"endpoint": answers.endpoint, "model": model}
        report |= {"usable": not faults, "findings": [asdict(one) for one in checks], "requests": answers.requests}
        click.echo(json.dumps(report))
    else:
        rows = []
        for one in checks:
            rows += [(one.verdict, one.check, one.found), *([("", "", f"-> {one.do}")] if one.do else [])]
        click.echo("\n".join(Table.of(("verdict", "check", "found"), rows).text(width=None)))
        end = "usable for scoring" if not faults else f"faults that make scores wrong or impossible: {faults}"
        click.echo(f"\n{end}; {answers.requests} requests were made")
    sys.exit(1 if faults else 0)


def _line(words: str, key: str) -> str:
    """Returns what a server answered, on one line, without the key and without control characters."""
    shown = words.replace(key, "[secret]") if key else words
    return "".join(c for c in " ".join(shown.split()) if c.isprintable())
