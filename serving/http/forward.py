"""The upstream's other endpoints: text completions and responses, scored where they have log-probabilities; embeddings.

Requests pass as they came: nothing is asked for that the caller did not ask for, and nothing is hidden.
"""

from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from metaprobe.serving.http.aside import REQUESTS, aside
from metaprobe.serving.http.connection import read_json_body
from metaprobe.serving.http.declined import Declined
from metaprobe.serving.http.exchange import Exchange
from metaprobe.serving.http.guard import trial_id
from metaprobe.serving.http.judges import Office
from metaprobe.serving.http.metrics import Metrics
from metaprobe.serving.http.request_log import ServerLog
from metaprobe.serving.http.scorer import Scorer
from metaprobe.serving.http.settings import Settings
from metaprobe.serving.http.streamed_answer import ScoredStream
from metaprobe.serving.http.upstream import UpstreamClient
from metaprobe.serving.http.wire import UNREADABLE, choices_of, model_of, with_verdicts

SCORED = ("/completions", "/responses")
FORWARDED = (*SCORED, "/embeddings")
"""Below the upstream's base address."""


@dataclass(frozen=True, slots=True)
class ForwardedQuestion:
    """A request that passes as it came, and who judges its answer: nobody where there is nothing to score."""

    path: str
    body: bytes
    scorer: Scorer | None
    max_answer_bytes: int

    model = ""
    added = ""

    @property
    def sent(self) -> bytes:
        return self.body

    def stream(self, without: str) -> ScoredStream | None:
        """What reads a streamed answer along."""
        return None if self.scorer is None else ScoredStream(self.scorer, max_bytes=self.max_answer_bytes)

    def whole(self, body: bytes, without: str) -> tuple[bytes, str]:
        """A whole answer with its verdict; else as it came, and why."""
        return (body, "") if self.scorer is None else _scored(body, self.scorer)


class Forwarder:
    """Hands requests on, and adds a verdict to what can be scored."""

    def __init__(
        self, settings: Settings, office: Office, client: UpstreamClient, metrics: Metrics, log: ServerLog | None
    ) -> None:
        self._log = log
        self._settings = settings
        self._office = office
        self._client = client
        self._metrics = metrics
        self._declined = Declined()

    async def __call__(self, request: Request) -> Response:
        """The upstream's answer. Raises `Refusal` for a request that is not to be asked."""
        judges = self._office.now  # a reload while the request comes in does not change who judges it
        body = await read_json_body(request, self._settings)
        path = "/" + request.url.path.rpartition("/")[2]
        scorer = None
        if path in SCORED:
            model = await aside(len(body), lambda: model_of(body), REQUESTS)
            scorer = judges.pick(model, trial_id(request))
            scorer = scorer.of(self._log.request(request) if self._log else None)
        return Exchange(
            request,
            ForwardedQuestion(path, body, scorer, self._settings.max_answer_bytes),
            settings=self._settings,
            client=self._client,
            metrics=self._metrics,
            declined=self._declined,
        )


def _scored(body: bytes, scorer: Scorer) -> tuple[bytes, str]:
    """The answer with its verdict; else as it came, and why."""
    try:
        return with_verdicts(body, [scorer.verdict(choice) for choice in choices_of(body)]), ""
    except UNREADABLE:
        reason = "the upstream's answer is not a JSON object"
        scorer.none(reason)
        return body, reason
