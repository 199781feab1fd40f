"""The application: `/v1/score`, `/v1/chat/completions`, `/metrics`, `/healthz`."""

from typing import TYPE_CHECKING

from metaprobe.probes.contract import OnMismatch
from metaprobe.probes.quality import QualityPredictor
from metaprobe.records.extras import require
from metaprobe.serving.gating import Gates
from metaprobe.serving.http.settings import Settings

if TYPE_CHECKING:
    from fastapi import FastAPI

NEEDED = ("fastapi", "httpx", "prometheus_client", "msgspec")


def create_app(
    settings: Settings, *, predictor: QualityPredictor | None = None, gates: Gates | None = None
) -> "FastAPI":
    """The server as an ASGI application. `predictor` and `gates`: in place of those the settings name.

    Raises a `CheckpointError` for a checkpoint that does not verify, `SettingsError` where keys are missing, and
    `MissingExtra` without the extra `serve`.
    """
    for module in NEEDED:
        require(module, "serve")
    from metaprobe.serving.http.endpoints import application

    settings.api_keys()  # the guard is built at the first request, which is too late to say that there are none
    # As a warning it would put names that callers choose into the log, and Python would remember each of them for ever.
    on_mismatch: OnMismatch = "note" if settings.on_mismatch == "warn" else settings.on_mismatch
    if predictor is None:
        predictor = QualityPredictor.load(settings.checkpoint, sha256=settings.sha256, on_mismatch=on_mismatch)
    if gates is None and settings.gate is not None:
        from metaprobe.routing.gate import StreamingGate

        gates = StreamingGate.load(
            settings.gate,
            stop=settings.gate_stop,
            escalate=settings.gate_escalate,
            sha256=settings.gate_sha256,
            on_mismatch=on_mismatch,
        )
    return application(settings, predictor, gates)
