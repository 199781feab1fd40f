"""The server's settings. They never hold secrets, only the names of the environment variables with secrets."""

import ipaddress
import os
import re
from dataclasses import dataclass
from operator import ge, gt, le, lt
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from metaprobe.api import ContractMismatch, FlagOptions, Option, RecordError

HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
NEVER_FORWARDED = frozenset(
    "host content-length content-type accept-encoding connection transfer-encoding cookie authorization upgrade te "
    "trailer keep-alive proxy-authorization x-metaprobe-key".split()
)
"""Headers that belong to one connection, hold a caller's secret, or are set by the proxy."""
_FINISH_REASON = re.compile(r"[A-Za-z0-9_]{1,64}")
_TOOL_FINISH_REASONS = ("tool_calls", "function_call")
MAX_BATCH = 1024
"""Most responses in one request to `/v1/score`, and most labels in one request to `/v1/feedback`."""


class SettingsError(RecordError):
    """The server would not work as intended, or would not be safe."""


@dataclass(frozen=True, slots=True)
class AgentUpstream:
    """The upstream of one agent, one of several."""

    name: str
    url: str
    model: str
    """Name of the agent's model at this upstream."""

    @property
    def host(self) -> str:
        """Host, which decides the prices."""
        return urlsplit(self.url).hostname or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(FlagOptions):
    """All settings of one server. The answers that its checkpoints flag are chosen as in `FlagOptions`.

    Raises `SettingsError` for invalid settings.
    """

    checkpoint: Annotated[
        Path | str,
        Option(
            "Quality predictor: a folder, bundled:NAME or hub:OWNER/NAME@REVISION; judges every model's answers.",
            variable=True,
        ),
    ]
    """A checkpoint with a name (`NAME=CHECKPOINT`) judges that model, and all models without their own checkpoint."""
    more_checkpoints: tuple[str, ...] = ()
    """Further checkpoints, each for the model NAME (`NAME=CHECKPOINT`), or for the models on which it was trained."""
    sha256: Annotated[str | None, Option("Digest of the (first) checkpoint, from its author.", variable=True)] = None
    pins: Annotated[
        Path | None,
        Option("File of lines [NAME=]CHECKPOINT SHA256; it is read again whenever it changes.", kind="file"),
    ] = None
    shadows: Annotated[
        tuple[str, ...],
        Option(
            "[NAME=]CHECKPOINT that scores the same answers, for comparison only; repeatable.",
            name="shadow",
            kind="named checkpoint",
        ),
    ] = ()
    canary_checkpoints: Annotated[
        tuple[str, ...],
        Option(
            "[NAME=]CHECKPOINT that judges a share of the requests; repeatable.",
            name="canary",
            kind="named checkpoint",
        ),
    ] = ()
    canary_share: Annotated[float, Option("Share of the requests that a canary judges.", low=0, high=1)] = 0.05
    panel: Annotated[
        Path | str | None,
        Option("Panel for POST /v1/panel: which of several answers to keep.", kind="checkpoint"),
    ] = None
    success: Annotated[
        Path | str | None,
        Option("Estimator for POST /v1/success: P(success) of each model before it is asked.", kind="checkpoint"),
    ] = None
    max_age: Annotated[
        float | None,
        Option("Age of the estimator's newest label, in days, from which its evidence is insufficient.", above=0),
    ] = None
    base_rates: Annotated[
        tuple[str, ...],
        Option(
            "[NAME=]RUN, with RUN as MODEL|TASK|VARIANT: run whose base rate is used; repeatable.",
            name="run",
            variable=True,
        ),
    ] = ()
    upstream: str = ""
    """Base URL of the only upstream. Without one, only the server's own answers work, such as `/v1/score`."""
    upstreams: Annotated[
        tuple[str, ...],
        Option(
            "Base URL of an OpenAI-compatible API, such as http://127.0.0.1:8000/v1. With --panel, NAME=URL for each"
            " of its agents, and it chooses among them; NAME=URL#MODEL where the API calls the model otherwise;"
            " repeatable.",
            name="upstream",
            metavar="[NAME=]URL",
        ),
    ] = ()
    panel_price: Annotated[
        float | None,
        Option(
            "Accuracy that each US dollar for 1,000 questions must gain, if the panel chooses among upstreams; with one"
            " upstream, accuracy that one more answer must gain.",
            low=0,
        ),
    ] = None
    panel_budget: Annotated[
        float | None,
        Option(
            "In its place: mean US dollars for 1,000 questions. The server corrects its plans by its spending so far.",
            above=0,
        ),
    ] = None
    """Without a price and a budget the panel's default applies."""
    gate: Annotated[
        Path | str | None,
        Option("Streaming gate that may end streamed answers early.", kind="checkpoint", variable=True),
    ] = None
    gate_sha256: Annotated[str | None, Option("Digest of the gate, from its author.", variable=True)] = None
    gate_stop: Annotated[
        float,
        Option("Largest share of good answers that the gate ends.", above=0, below=1, variable=True),
    ] = 0.05
    gate_escalate: Annotated[
        float | None,
        Option(
            "Largest share of good answers that the gate ends for a stronger model to answer.",
            above=0,
            below=1,
            variable=True,
        ),
    ] = None
    """Not above `gate_stop`."""
    gate_finish_reason: Annotated[str, Option("finish_reason of an answer that the gate ended.", variable=True)] = (
        "content_filter"
    )
    """Every client knows the default, and none takes it for a natural end or requests the rest."""
    log: Annotated[str, Option("Log every verdict: a SQLite file, or the URL of a database.", variable=True)] = ""
    """The path of a SQLite file, or a SQLAlchemy URL without password. Empty for no log."""
    log_texts: Annotated[bool, Option("Log questions and answers too.", variable=True)] = False
    log_logprobs: Annotated[bool, Option("Log the answers' log-probabilities too.", variable=True)] = False
    log_days: Annotated[float | None, Option("Days after which logged verdicts are deleted.", above=0)] = None
    log_spool: Annotated[
        Path | None,
        Option("Folder for verdicts while the log's database takes none.", kind="folder to write in"),
    ] = None
    """By default the folder of a SQLite file, and for a URL the folder for temporary files."""
    teach_rate: Annotated[
        float,
        Option(
            "Share of the questions that are asked once more in the background, to learn whether the answers agree."
            " It adds this share to the upstream's bill. It needs --log.",
            low=0,
            high=1,
        ),
    ] = 0.0
    """The key that paid for the first answer pays for the second: the server's own, or the caller's if the server has
    none. See `metaprobe.production.http.second_answer`.
    """
    prices: Annotated[
        Path | None,
        Option('For costs in the log: {"MODEL": {"prompt": USD, "completion": USD}} a million tokens.', kind="file"),
    ] = None
    """File of prices by the model's name (`metaprobe.llms.pricing.Price.read`).

    Without it, OpenAI's own models at OpenAI have their list price, and other models none.
    """
    host: Annotated[str, Option("Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Option("0 takes a free one.", low=0, high=65535)] = 8080
    api_key_env: Annotated[str, Option("Environment variable with the callers' keys, separated by commas.")] = (
        "METAPROBE_API_KEY"
    )
    """The keys are each KEY or NAME=KEY, separated by commas or white space."""
    keys_file: Annotated[
        Path | None,
        Option(
            "TOML file with one table per caller: [NAME], key or sha256, per_minute, in_flight.",
            name="keys",
            kind="file",
        ),
    ] = None
    key_per_minute: Annotated[float | None, Option("Requests of one key in a minute; more get 429.", above=0)] = None
    """Counted in each worker, unless the keys file sets another number; None for no limit."""
    key_in_flight: Annotated[int | None, Option("Requests of one key at one time; more get 429.", low=1)] = None
    """Counted in each worker; None for no limit."""
    upstream_key_env: Annotated[
        str,
        Option("Environment variable with the upstream's key; if empty, the caller's key is forwarded."),
    ] = "METAPROBE_UPSTREAM_KEY"
    auth: Annotated[bool, Option("Require a key of callers; --no-auth only on a loopback address.")] = True
    max_body_bytes: Annotated[int, Option("Most bytes of a request.", name="max-body", low=1)] = 16 << 20
    max_answer_bytes: Annotated[
        int, Option("Most bytes of an upstream's answer that are scored.", name="max-answer", low=1)
    ] = 64 << 20
    """A longer stream passes without a score."""
    forward_headers: Annotated[
        tuple[str, ...],
        Option("Further request header to pass to the upstream; repeatable.", name="forward-header"),
    ] = ()
    """The usual headers are listed in `metaprobe.production.http.upstream`."""
    timeout_s: Annotated[float, Option("Seconds that the upstream may be silent.", name="timeout", above=0)] = 600.0
    total_timeout_s: Annotated[
        float,
        Option(
            "Time limit in seconds for a whole answer, also a stream; for all upstreams together.",
            name="total-timeout",
            above=0,
        ),
    ] = 1800.0
    """Longer than a normal stream takes: half an hour is 90,000 tokens at 50 a second."""
    agent_timeout_s: Annotated[
        float,
        Option(
            "With several upstreams: time limit in seconds for each one's whole answer.",
            name="agent-timeout",
            above=0,
        ),
    ] = 600.0
    hedge_after_s: Annotated[
        float | None,
        Option(
            "With several upstreams: seconds without an answer after which the next one is asked beside; 0 asks all at"
            " once. A request's header metaprobe-hedge-after then counts in its place.",
            name="hedge-after",
            low=0,
            high=86400,
        ),
    ] = None
    """If None, agents are asked one after another and the header is refused: asking several agents at once costs
    the server's owner money.
    """
    agent_failures: Annotated[
        int, Option("Consecutive failures after which one of several upstreams is paused.", low=1)
    ] = 5
    agent_pause_s: Annotated[
        float,
        Option(
            "Seconds of this pause; then one request tries it again.",
            name="agent-pause",
            above=0,
            high=86400,
        ),
    ] = 30.0
    """The pause is randomly up to a fifth shorter or longer, and doubles up to eightfold while the trials fail."""
    max_concurrency: Annotated[int, Option("Requests in flight in one worker; more are answered 503.", low=1)] = 256
    max_connections: Annotated[
        int,
        Option("Connections open in one worker; for one more, the one idle for longest is closed.", low=1),
    ] = 512
    max_scored_tokens: Annotated[
        int,
        Option(
            "Tokens with log-probabilities in a request to /v1/score, or in an upstream's answer, that are scored.",
            low=1,
        ),
    ] = 1 << 20
    header_timeout_s: Annotated[
        float, Option("Seconds in which a request's header must arrive.", name="header-timeout", above=0)
    ] = 15.0
    """Counted from the request's connection or its first byte."""
    body_timeout_s: Annotated[
        float, Option("Seconds in which a request's body must arrive.", name="body-timeout", above=0)
    ] = 30.0
    """Counted from the end of the header."""
    send_timeout_s: Annotated[
        float,
        Option(
            "Seconds for which a caller may read nothing of a waiting answer.",
            name="send-timeout",
            above=0,
        ),
    ] = 120.0
    grace_s: Annotated[int, Option("Seconds a shutdown may take.", name="grace", low=0)] = 60
    workers: Annotated[int, Option("Processes.", low=1)] = 1
    """Each process has its own ONNX session."""
    on_mismatch: Annotated[
        Literal["warn", "refuse", "ignore"],
        Option(
            "For answers of another model than the checkpoint was trained on; 'warn' says so in the verdict.",
            variable=True,
        ),
    ] = "warn"
    log_format: Annotated[Literal["text", "json"], Option("Format of log lines.")] = "text"
    otel: Annotated[bool, Option("Send OpenTelemetry one span per request, with verdicts as events.")] = False
    """Needs the extra `serve`."""

    def __post_init__(self) -> None:
        try:
            FlagOptions.__post_init__(self)
        except ContractMismatch as error:
            raise SettingsError(str(error)) from error
        for option in Option.all_in(Settings):
            _check_range(option.name, option.option, getattr(self, option.name))
        if self.gate_stop is not None and self.gate_escalate is not None and self.gate_escalate > self.gate_stop:
            raise SettingsError(
                f"gate_escalate {self.gate_escalate} is above gate_stop {self.gate_stop}: what is escalated begins "
                "worse than what is stopped; give the smaller share to escalate"
            )
        if not _FINISH_REASON.fullmatch(self.gate_finish_reason) or self.gate_finish_reason in _TOOL_FINISH_REASONS:
            raise SettingsError(
                f"gate_finish_reason is {self.gate_finish_reason!r}; expected a word of letters, digits and _ that has"
                " no client carry out a tool call, such as content_filter or length"
            )
        if not self.auth and not is_loopback(self.host):
            raise SettingsError(
                f"without keys anyone who reaches {self.host} could use the upstream: bind to 127.0.0.1, or put keys"
                f" into {self.api_key_env} and leave authentication on"
            )
        for name in self.forward_headers:
            if name.lower() in NEVER_FORWARDED or not HEADER_NAME.fullmatch(name):
                raise SettingsError(f"header {name!r} is not one that may be handed on to the upstream")
        self._check_upstreams()
        if self.gate is not None and not self.upstream:
            raise SettingsError(
                "a gate ends answers of an upstream, and no upstream is given: name one, or leave the gate out"
            )
        self._check_log()

    def _check_upstreams(self) -> None:
        """Checks the addresses, and stores the one without a name in `upstream`."""
        unnamed = [self.upstream] * bool(self.upstream) + [
            written for written in self.upstreams if not _upstream_name(written)
        ]
        if len(dict.fromkeys(unnamed)) > 1 or (unnamed and self.named_upstreams):
            raise SettingsError("several upstreams came, one without a name; expected one URL, or NAME=URL for each")
        if self.named_upstreams and self.panel is None:
            raise SettingsError("several upstreams are given, and no panel that chooses among them: name one (--panel)")
        if self.max_age is not None and self.success is None:
            raise SettingsError("the age of labels is bounded (--max-age), and there is no --success whose labels age")
        if (self.panel_price, self.panel_budget) != (None, None) and not self.named_upstreams:
            raise SettingsError("a panel's price or budget is given, and no --upstream NAME=URL to choose among")
        for url in [*unnamed, *(agent_upstream.url for agent_upstream in self.named_upstreams.values())]:
            _check_upstream(url)
        if unnamed:
            object.__setattr__(self, "upstream", unnamed[0])
            object.__setattr__(self, "upstreams", (unnamed[0],))

    @property
    def named_upstreams(self) -> dict[str, AgentUpstream]:
        """The upstreams among which the panel chooses, by the agent's name."""
        upstreams: dict[str, AgentUpstream] = {}
        for written in self.upstreams:
            if name := _upstream_name(written):
                if name in upstreams:
                    raise SettingsError(f"two upstreams are called {name!r}; give each agent one")
                url, _, model = written.partition("=")[2].partition("#")
                upstreams[name] = AgentUpstream(name, url, model or name)
        return upstreams

    def _check_log(self) -> None:
        if self.teach_rate and not self.log:
            raise SettingsError("questions are to be asked again, and no log is given: name one (--log scores.sqlite)")
        if self.teach_rate and (self.named_upstreams or not self.upstreams):
            raise SettingsError(
                "a teach rate is for one upstream (--upstream URL): a panel's upstreams answer one question several "
                "times already, and without an upstream nobody can be asked again"
            )
        only_logged = self.log_texts or self.log_logprobs or self.log_days is not None or self.log_spool
        if not self.log and (only_logged or (self.prices and not self.named_upstreams)):
            raise SettingsError("something is to be logged, and no log is given: name one (--log scores.sqlite)")
        password_in_query = re.search(r"[?&;](?:ssl)?password=", self.log, re.IGNORECASE)
        if re.search(r"://[^/@]*:[^/@]*@", self.log) or password_in_query:
            raise SettingsError(
                "the log's URL holds a password, which every process of this machine can read; leave it out, and put it"
                " into the environment (PGPASSWORD) or into ~/.pgpass"
            )

    @property
    def run_by_model(self) -> dict[str, str]:
        """Name of the run that each model's answers belong to, by the model's name; under "" the run for the first
        checkpoint.
        """
        runs = {}
        for written in self.base_rates:
            name, equals, run = written.partition("=")
            has_model_name = equals and "|" not in name  # a run's own name may hold the sign: my-model|sums|shots=3
            if (key := name if has_model_name else "") in runs:
                raise SettingsError(f"two runs are given for {key or 'the first checkpoint'!r}; give each model one")
            runs[key] = run if has_model_name else written
        return runs

    def upstream_key(self, name: str = "") -> str:
        """Returns the key for the upstream, from the environment; empty if the caller's own key is forwarded.

        `name` is one of several upstreams. Its own variable ends in its name (`METAPROBE_UPSTREAM_KEY_SMALL`).
        """
        own_variable = f"{self.upstream_key_env}_{re.sub(r'[^A-Za-z0-9]', '_', name).upper()}"
        variable = own_variable if name and own_variable in os.environ else self.upstream_key_env
        key = os.environ.get(variable, "").strip()
        if not (key.isascii() and key.isprintable()):
            raise SettingsError(f"{variable} holds characters that no header can carry")
        return key


def _check_range(name: str, option: Option, value: object) -> None:
    """Raises `SettingsError` for a number outside the range of its option.

    Args:
        name: name of the option.
        option: the option.
        value: its value.
    """
    bounds = (
        ("above", option.above, gt),
        ("from", option.low, ge),
        ("below", option.below, lt),
        ("up to", option.high, le),
    )
    bounds_given = [(word, bound, holds) for word, bound, holds in bounds if bound is not None]
    if isinstance(value, (int, float)) and not all(holds(value, bound) for _, bound, holds in bounds_given):
        allowed = " and ".join(f"{word} {bound:g}" for word, bound, _ in bounds_given)
        raise SettingsError(f"{name} is {value}; expected a number {allowed}")


def _upstream_name(written: str) -> str:
    """Returns the name in NAME=URL; empty if there is none."""
    name, equals, _ = written.partition("=")
    return name if equals and "://" not in name else ""


def is_loopback(host: str) -> bool:
    """Returns whether only this machine can reach a server bound to `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check_upstream(url: str) -> None:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises where it is no number
    except ValueError as error:
        raise SettingsError(f"the upstream's address cannot be read ({error})") from error
    # The address may hold a secret by mistake, so the message does not repeat it.
    if parts.username is not None or parts.password is not None:
        raise SettingsError("the upstream's address holds a user or password; put its key into the environment instead")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise SettingsError(
            "the upstream's address is not a base URL; expected http(s)://host[:port]/path, such as"
            " https://api.example.com/v1, without query"
        )
