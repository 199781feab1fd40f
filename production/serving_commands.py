"""The command `metaprobe serve`: scores answers over HTTP."""

from typing import Annotated, Any

import click

from metaprobe.api import Option, command
from metaprobe.production.http.settings import Settings

COMMAND_GROUP = click.Group()


@command(COMMAND_GROUP, "Score over HTTP, and stand in front of an OpenAI-compatible API.")
def serve(
    settings: Annotated[dict[str, Any], Option(fields_of=Settings)],
    checkpoint: Annotated[tuple[str, ...], Option(kind="named checkpoint", argument=True)] = (),
) -> None:
    """Score answers over HTTP with a quality predictor, and stand in front of an OpenAI-compatible API.

    POST /v1/score takes a response, or {"responses": [...]}. POST /v1/chat/completions asks the upstream and adds the
    verdict under "metaprobe"; so do /v1/completions and /v1/responses if they have log-probabilities. GET /v1/models is
    the upstream's list, GET /metrics is for Prometheus, GET /readyz says whether the server is ready, and GET
    /openapi.json describes all addresses. With --log, POST /v1/feedback takes labels of earlier answers.

    With --panel C --upstream NAME=URL --upstream NAME=URL, the panel chooses among the upstreams for each chat
    completion, and asks more of them while another answer is worth its price. "metaprobe.panel" says who was asked and
    what it cost. Without a CHECKPOINT, bundled:quality then scores what is logged.

    With --success C, POST /v1/success says how likely each model is to answer a request rightly, before it is asked.

    With several CHECKPOINTS each one judges the answers of one model: NAME=CHECKPOINT, or the models on which it was
    trained. The first checkpoint judges all other models as well. SIGHUP loads all checkpoints again.

    Keys are read from the environment, never from the command line.
    """
    from metaprobe.production.http.app import run_server

    if not checkpoint and settings["panel"] is None and settings["success"] is None:
        raise click.UsageError(
            "Missing CHECKPOINT: name a quality predictor, or give --panel with --upstream NAME=URL, or --success"
        )
    first, *other_checkpoints = checkpoint or ("bundled:quality",)
    run_server(Settings(**settings | {"checkpoint": first, "more_checkpoints": tuple(other_checkpoints)}))
