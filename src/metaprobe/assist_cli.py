"""`metaprobe assist`: the writing assistant as a page on this machine."""

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from metaprobe.terminal import FOLDER

SESSIONS = Path("out/assist/sessions.sqlite")


@click.command(short_help="The writing assistant: a page on this machine.")
@click.option(
    "--llm",
    multiple=True,
    default=("smollm2-135m",),
    show_default=True,
    help="Embedded name, folder, GGUF file, hub id, or openai:MODEL[@URL]. NAME=L for one module; repeatable.",
)
@click.option(
    "--api",
    multiple=True,
    help="KEY=VALUE for openai: models, such as logprobs_mode=raw or extra_body={...}; repeatable.",
)
@click.option(
    "--sessions",
    type=click.Path(dir_okay=False, path_type=Path),
    default=SESSIONS,
    show_default=True,
    help="File that holds texts, versions and conversations.",
)
@click.option("--runs", type=FOLDER, help="Run store that keeps every call of every answer, as `collect` does.")
@click.option("--study", is_flag=True, help="Run a study: conditions hidden and in balanced order, then a survey.")
@click.option("--signal", multiple=True, help="NAME=CHECKPOINT, as for `collect`; quality is shown with an answer.")
@click.option(
    "--constant", multiple=True, metavar="NAME=VALUE", help="Constant of the assistant, such as learned=1; repeatable."
)
@click.option("--tokens", multiple=True, metavar="STAGE=N", help="Most tokens of a module's answers; repeatable.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on: one of this machine.")
@click.option("--port", default=8090, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one.")
@click.option("--allow-host", multiple=True, help="Name of a proxy with a login before the page; repeatable.")
@click.option("--open/--no-open", "open_it", default=True, help="Open the page in the browser.")
def assist(open_it: bool, runs: Path | None, **named: Any) -> None:
    """Open the writing assistant in the browser: an editor, and beside it an assistant that helps without writing.

    Texts stay in one file on this machine. They are sent to the models that --llm names, and to nobody else. With
    the small embedded model the page works and the advice is poor: name a stronger one.
    """
    from metaprobe.assist import keeper_of, plan_page
    from metaprobe.records.store import RunStore
    from metaprobe.serving.assistant.run_assist import check_extras, listener_of, serve_page

    check_extras()
    settings, load = plan_page(**named)
    with listener_of(settings) as listener:
        systems = load()
        address = f"http://{settings.host}:{listener.getsockname()[1]}/"
        click.echo(f"{address}  (texts: {settings.sessions}; Ctrl-C ends)", err=True)
        if open_it:
            click.launch(address)
        store = None if runs is None else RunStore(runs)
        with nullcontext() if store is None else store.alone():
            asyncio.run(serve_page(settings, systems, listener, on_run=keeper_of(store)))
