"""`metaprobe serve`: scoring over HTTP, and a proxy that adds verdicts."""

from pathlib import Path
from typing import Any

import click

from metaprobe.terminal import CHECKPOINT, NAMED_CHECKPOINT, flag_options, flags_given


@click.command(short_help="Score over HTTP, and stand in front of an OpenAI-compatible API.")
@click.argument("checkpoint", type=NAMED_CHECKPOINT, nargs=-1, required=True)
@click.option("--sha256", help="Digest of the (first) checkpoint, from its author.")
@click.option(
    "--pins",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File of lines [NAME=]CHECKPOINT SHA256; whenever it changes, what it names is taken in.",
)
@click.option(
    "--shadow",
    "shadows",
    multiple=True,
    type=NAMED_CHECKPOINT,
    help="[NAME=]CHECKPOINT that scores the same answers, for comparison only; repeatable.",
)
@click.option(
    "--canary",
    "canaries",
    multiple=True,
    type=NAMED_CHECKPOINT,
    help="[NAME=]CHECKPOINT that judges a share of the requests; repeatable.",
)
@click.option(
    "--canary-share", default=0.05, show_default=True, type=click.FloatRange(0, 1), help="Share that a canary judges."
)
@click.option(
    "--run",
    "base_rates",
    multiple=True,
    help="[NAME=]RUN, with RUN as MODEL|TASK|VARIANT: the base rate that the answers have; repeatable.",
)
@flag_options
@click.option("--upstream", default="", help="Base URL of an OpenAI-compatible API, such as http://127.0.0.1:8000/v1.")
@click.option("--gate", type=CHECKPOINT, help="Streaming gate that may end streamed answers early.")
@click.option("--gate-sha256", help="Digest of the gate, from its author.")
@click.option(
    "--gate-stop",
    default=0.05,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Share of good answers that the gate ends at most.",
)
@click.option(
    "--gate-escalate",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="Share of good answers that it ends as better asked of a stronger model, at most.",
)
@click.option(
    "--gate-finish-reason",
    default="content_filter",
    show_default=True,
    help="finish_reason of an answer that the gate ended.",
)
@click.option("--log", default="", help="Log every verdict: a SQLite file, or the URL of a database.")
@click.option("--log-texts", is_flag=True, help="Log questions and answers too.")
@click.option("--log-logprobs", is_flag=True, help="Log the answers' log-probabilities too.")
@click.option(
    "--log-days", type=click.FloatRange(0, min_open=True), help="Days after which logged verdicts are taken away."
)
@click.option(
    "--log-spool",
    type=click.Path(exists=True, file_okay=False, writable=True, path_type=Path),
    help="Folder for verdicts that the log's database does not take, until it does.",
)
@click.option(
    "--prices",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help='For costs in the log: {"MODEL": {"prompt": USD, "completion": USD}} a million tokens.',
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8080, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one.")
@click.option(
    "--api-key-env",
    default="METAPROBE_API_KEY",
    show_default=True,
    help="Environment variable with the callers' keys, separated by commas.",
)
@click.option(
    "--keys",
    "keys_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="TOML file with a table a caller: [NAME], key or sha256, per_minute, in_flight.",
)
@click.option(
    "--key-per-minute", type=click.FloatRange(0, min_open=True), help="Requests of one key in a minute; more get 429."
)
@click.option("--key-in-flight", type=click.IntRange(1), help="Requests of one key at one time; more get 429.")
@click.option(
    "--upstream-key-env",
    default="METAPROBE_UPSTREAM_KEY",
    show_default=True,
    help="Environment variable with the upstream's key; where it is empty, the caller's own is forwarded.",
)
@click.option(
    "--auth/--no-auth", default=True, help="Ask callers for a key, or for none; none only on a loopback address."
)
@click.option(
    "--max-body", "max_body_bytes", default=16 << 20, show_default=True, type=click.IntRange(1), help="Bytes a request."
)
@click.option(
    "--max-answer",
    "max_answer_bytes",
    default=64 << 20,
    show_default=True,
    type=click.IntRange(1),
    help="Bytes of an upstream's answer that are read to be scored.",
)
@click.option(
    "--forward-header",
    "forward_headers",
    multiple=True,
    help="Request header that the upstream gets too, beside the usual ones; repeatable.",
)
@click.option(
    "--top-logprobs",
    default=5,
    show_default=True,
    type=click.IntRange(0, 20),
    help="Alternatives asked for where the checkpoint needs them and the caller asked for none.",
)
@click.option(
    "--timeout",
    "timeout_s",
    default=600.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Seconds that the upstream may be silent.",
)
@click.option(
    "--max-concurrency",
    default=256,
    show_default=True,
    type=click.IntRange(1),
    help="Requests in flight in one worker; more are answered 503.",
)
@click.option(
    "--max-connections",
    default=512,
    show_default=True,
    type=click.IntRange(1),
    help="Connections open in one worker; for one more, the one idle for longest is closed.",
)
@click.option(
    "--max-scored-tokens",
    default=1 << 20,
    show_default=True,
    type=click.IntRange(1),
    help="Tokens with log-probabilities in a request to /v1/score, or in an upstream's answer, that are scored.",
)
@click.option(
    "--header-timeout",
    "header_timeout_s",
    default=15.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Seconds in which a request's header must arrive.",
)
@click.option(
    "--body-timeout",
    "body_timeout_s",
    default=30.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Seconds in which a request's body must arrive.",
)
@click.option(
    "--send-timeout",
    "send_timeout_s",
    default=120.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Seconds in which a caller may take nothing of an answer that waits for it.",
)
@click.option(
    "--grace", "grace_s", default=60, show_default=True, type=click.IntRange(0), help="Seconds a shutdown may take."
)
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1), help="Processes.")
@click.option(
    "--on-mismatch",
    type=click.Choice(["warn", "refuse", "ignore"]),
    default="warn",
    show_default=True,
    help="For answers of another model than the checkpoint was trained on; 'warn' says so in the verdict.",
)
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True, help="How log lines look."
)
@click.option("--otel", is_flag=True, help="Give OpenTelemetry a span a request, with its verdicts as events.")
def serve(checkpoint: tuple[str, ...], **named: Any) -> None:
    """Score answers over HTTP with a quality predictor, and stand in front of an OpenAI-compatible API.

    POST /v1/score takes a response, or {"responses": [...]}. POST /v1/chat/completions asks the upstream and adds
    the verdict under "metaprobe"; so do /v1/completions and /v1/responses where they have log-probabilities. GET
    /v1/models is the upstream's list, GET /metrics is for Prometheus, GET /readyz says that it is ready, and GET
    /openapi.json names all. With --log, POST /v1/feedback takes labels for what was answered.

    Several CHECKPOINTS judge the answers of one model each: NAME=CHECKPOINT, or those that it was trained on. The first
    judges all others as well. SIGHUP takes in what their places hold now.

    Keys are read from the environment, never from the command line.
    """
    from metaprobe.serving.http.run_server import serve as run
    from metaprobe.serving.http.settings import Settings

    flags = flags_given(named).flags
    run(Settings(checkpoint=checkpoint[0], more_checkpoints=checkpoint[1:], **flags, **named))
