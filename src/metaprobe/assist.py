"""From the options of `metaprobe assist` to the page's settings and the systems that it runs."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from metaprobe.collecting.given_options import check_constants, check_limits, check_needs, options_of
from metaprobe.collecting.models import api_options, load_models, parse_models
from metaprobe.llms.weights import EMBEDDED
from metaprobe.pipelines.caelf import SYSTEM as CAELF
from metaprobe.pipelines.prompting import Prompts
from metaprobe.pipelines.session import Models, Setup
from metaprobe.pipelines.system import System
from metaprobe.pipelines.writing_assistant.assistant import SYSTEM as ASSISTANT
from metaprobe.pipelines.writing_assistant.wordnet import wordnet
from metaprobe.probes.source import SignalSource
from metaprobe.records.store import RunStore
from metaprobe.records.types import Run
from metaprobe.serving.assistant.app import Systems
from metaprobe.serving.assistant.settings import AssistSettings, places_of


def plan_page(
    *,
    llm: Sequence[str],
    api: Sequence[str],
    sessions: Path,
    study: bool,
    signal: Sequence[str],
    constant: Sequence[str],
    tokens: Sequence[str],
    host: str,
    port: int,
    allow_host: Sequence[str],
) -> tuple[AssistSettings, Callable[[], Systems]]:
    """Returns the settings, and what loads the models. Raises `RecordError` for options that cannot be meant."""
    named = parse_models(llm, None, ASSISTANT, ())
    check_needs(ASSISTANT, ASSISTANT.variants)
    options = options_of(ASSISTANT, tokens, constant)
    check_constants(ASSISTANT, ASSISTANT.variants, constant)
    check_limits(options, ASSISTANT, named, ())
    asked = api_options(api, None)
    settings = AssistSettings(
        sessions=sessions,
        models=places_of(named, tuple(EMBEDDED)),
        host=host,
        port=port,
        allowed_hosts=tuple(allow_host),
        study=study,
    )

    def load() -> Systems:
        words = threading.Thread(target=wordnet, daemon=True)  # takes seconds, in which no page would be served
        words.start()
        signals = SignalSource.load(signal)
        models = load_models(named, ASSISTANT, signals, (), api=asked)
        words.join()
        writing = Setup(models, _prompts(ASSISTANT), signals=signals, options=options)
        return Systems(writing, None if study else Setup(Models(models.default), _prompts(CAELF)))

    return settings, load


def keeper_of(store: RunStore | None) -> Callable[[Run], None]:
    """Returns what keeps the run of every answered turn in a store; or what keeps nothing, where there is none."""
    return (lambda run: None) if store is None else (lambda run: store.append([run]))


def _prompts(system: System) -> Prompts:
    return Prompts.load(system.folder or system.name, system.prompts)
