"""The proxy: what the upstream answers, passed on with a verdict.

What a caller gets is what the upstream gave. Added are the verdict, under `metaprobe`, and log-probabilities in the
request for a chat completion where the caller asked for none, which are then taken out of the answer again. Text
completions and responses are scored where they have log-probabilities; like embeddings, they pass as they came. An
error of the upstream passes with its status and body.
"""

import re
import time
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

from metaprobe.routing.gate import StreamingGate
from metaprobe.serving.http.bodies import REQUESTS, aside, read_json_body
from metaprobe.serving.http.choosing import CHAT
from metaprobe.serving.http.exchange import Declined, Question, UpstreamExchange
from metaprobe.serving.http.guard import trial_id
from metaprobe.serving.http.judges import Office
from metaprobe.serving.http.metrics import Metrics
from metaprobe.serving.http.panels import PanelDesk
from metaprobe.serving.http.refusal import Refusal
from metaprobe.serving.http.request_log import ServerLog
from metaprobe.serving.http.settings import Settings
from metaprobe.serving.http.upstream import UpstreamClient, redirect, to_caller
from metaprobe.serving.http.wire import asked, model_of

EMBEDDINGS = "/embeddings"
FORWARDED = (CHAT, "/completions", "/responses", EMBEDDINGS)
"""Below the upstream's base address."""
_ODD = re.compile(r"[;%\ufffd\x00-\x1f]")
"""Characters that no name of a model holds, and that may mean another path to the upstream."""


@dataclass(frozen=True, slots=True)
class Proxy:
    """Answers requests by asking the upstream, and only it."""

    settings: Settings
    office: Office
    gates: StreamingGate | None
    client: UpstreamClient
    metrics: Metrics
    log: ServerLog | None
    panels: PanelDesk | None
    declined: Declined = field(default_factory=Declined)

    async def __call__(self, request: Request) -> Response:
        """The upstream's answer with a verdict. Raises `Refusal` for a request that is not to be asked."""
        judges = self.office.now  # a reload while the request comes in does not change who judges it
        body = await read_json_body(request, self.settings)
        started = time.perf_counter()
        path = request.url.path.rpartition("/v1")[2]
        chat, scorer, model = None, None, ""
        if path == CHAT:
            chat = await aside(len(body), lambda: asked(body), REQUESTS)
            model = chat.model
        elif path != EMBEDDINGS:
            model = await aside(len(body), lambda: model_of(body), REQUESTS)
        if path != EMBEDDINGS:
            scorer = judges.pick(model, trial_id(request))
            if log := self.log:
                scorer = scorer.of(await aside(len(body), lambda: log.request(request, chat), REQUESTS))
        return UpstreamExchange(
            request,
            Question(
                path, body, scorer, self.settings, chat, self.gates if chat else None, self.panels if chat else None
            ),
            self.client,
            time.perf_counter() - started,
            metrics=self.metrics,
            declined=self.declined,
        )

    async def models(self, request: Request) -> Response:
        """The upstream's list of models, or what it says of one, as it is."""
        async with self.client.asking(request, "GET", _model_path(request), None) as answer:
            body = await answer.whole(self.settings.max_answer_bytes)
        if 300 <= answer.status < 400:
            raise redirect(answer)
        return Response(body, answer.status, to_caller(answer.headers))


def _model_path(request: Request) -> str:
    """The path of the model that the caller names, as it was written; of the list where none is named."""
    if "model" not in request.path_params:
        return "/models"
    name = request.path_params["model"]
    # `..` in the path could reach an upstream path other than /models. Servers differ in what they take for `..`: some
    # leave out `;x`, some decode twice (`%252e`), some read bytes that are no UTF-8.
    if {"", ".", ".."} & set(name.replace("\\", "/").split("/")) or _ODD.search(name):
        raise Refusal(404, "unknown_model", "this is no name of a model")
    written: bytes = request.scope["raw_path"].partition(b"/models/")[2]
    return f"/models/{written.decode('latin-1')}"
