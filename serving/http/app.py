"""The application: `/v1/score`, `/v1/chat/completions`, `/metrics`, `/healthz`."""

from functools import partial
from typing import TYPE_CHECKING

from metaprobe.probes.quality import QualityPredictor
from metaprobe.records.extras import require
from metaprobe.routing.gate import StreamingGate
from metaprobe.serving.http.settings import Settings

if TYPE_CHECKING:
    from starlette.applications import Starlette

NEEDED = ("starlette", "aiohttp", "prometheus_client", "msgspec")


def create_app(
    settings: Settings, *, predictor: QualityPredictor | None = None, gates: StreamingGate | None = None
) -> "Starlette":
    """The server as an ASGI application. `predictor` and `gates`: in place of those the settings name.

    Raises a `CheckpointError` for a checkpoint that does not verify, `SettingsError` where keys are missing, and
    `MissingExtra` without the extra `serve`.
    """
    for module in NEEDED:
        require(module, "serve")
    from metaprobe.serving.http.endpoints import application
    from metaprobe.serving.http.judges import Judges, Scorer, Seat, load_gates, load_judges
    from metaprobe.serving.http.metrics import Metrics

    metrics = Metrics()
    if predictor is None:
        load = partial(load_judges, settings, metrics)
    else:
        scorer = Scorer(predictor, metrics, max_tokens=settings.max_scored_tokens)
        load = partial(Judges, {"": Seat(scorer)})
    return application(settings, metrics, load, gates or load_gates(settings))
