"""How the server is set up. Secrets are never in it: it names the environment variables that hold them."""

import ipaddress
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from metaprobe.checkpoints import ContractMismatch, FlagOptions
from metaprobe.records.errors import RecordError

HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
NEVER_FORWARDED = frozenset(
    "host content-length content-type accept-encoding connection transfer-encoding cookie authorization upgrade te "
    "trailer keep-alive proxy-authorization x-metaprobe-key".split()
)
"""They belong to one connection, or hold a caller's secret, or are set by the proxy."""
_WORD = re.compile(r"[A-Za-z0-9_]{1,64}")
_CALLING = ("tool_calls", "function_call")
_POSITIVE = """
max_body_bytes max_answer_bytes max_batch max_scored_tokens max_concurrency max_connections timeout_s connect_timeout_s
header_timeout_s body_timeout_s send_timeout_s retry_after_s workers
""".split()


class SettingsError(RecordError):
    """The server would not be what was meant, or not be safe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(FlagOptions):
    """Everything about one server; which answers its checkpoints flag is said as in `FlagOptions`.

    Raises `SettingsError` for what cannot be meant.
    """

    checkpoint: Path | str
    """Of a quality predictor: a folder, `bundled:NAME` or `hub:OWNER/NAME@REVISION`; judges every model's answers.

    With a name before it (`NAME=CHECKPOINT`) those of that model, and of all that have no checkpoint of their own."""
    more_checkpoints: tuple[str, ...] = ()
    """Further ones, each for the model NAME (`NAME=CHECKPOINT`), or for those that it was trained on."""
    pins: Path | None = None
    """File of lines `[NAME=]CHECKPOINT SHA256`, which count for more than the above and are read when they change."""
    shadows: tuple[str, ...] = ()
    """`[NAME=]CHECKPOINT`: scores the same answers as the model's checkpoint, for comparison only."""
    canaries: tuple[str, ...] = ()
    """`[NAME=]CHECKPOINT`: judges a share of the requests in place of the model's checkpoint."""
    canary_share: float = 0.05
    """That share, in [0, 1]."""
    base_rates: tuple[str, ...] = ()
    """`[NAME=]RUN`: the run, MODEL|TASK|VARIANT, whose base rate the answers of that model have."""
    sha256: str | None = None
    """Digest of the checkpoint, from its author; of the gate, `gate_sha256`."""
    gate_sha256: str | None = None
    on_mismatch: Literal["warn", "refuse", "ignore"] = "warn"
    """For responses of another model than the checkpoint was trained on; `warn` says so in the verdict's reason."""
    upstream: str = ""
    """Base URL of an OpenAI-compatible API, such as `http://127.0.0.1:8000/v1`; without one, only `/v1/score` works."""
    gate: Path | str | None = None
    """Checkpoint of a streaming gate that may end streamed answers early."""
    gate_stop: float = 0.05
    """Promised share of good answers that the gate stops at most."""
    gate_escalate: float | None = None
    """The same of those it ends as better asked of a stronger model; at most `gate_stop`."""
    gate_finish_reason: str = "content_filter"
    """What the last chunk of an answer that the gate ended says; every client knows the default, and none takes it for
    a natural end or asks for the rest."""
    log_format: Literal["text", "json"] = "text"
    """How log lines look."""
    otel: bool = False
    """Whether OpenTelemetry gets a span a request, with its verdicts as events (extra `otel`)."""
    log: str = ""
    """Where verdicts are logged: the path of a SQLite file, or a SQLAlchemy URL without password. Empty for nowhere."""
    log_texts: bool = False
    """Whether questions and answers are logged too."""
    log_logprobs: bool = False
    """Whether the log-probabilities of answers are logged too."""
    log_spool: Path | None = None
    """Folder for verdicts that the log's database does not take, until it does; None for beside a SQLite file, and for
    a URL the folder for temporary files."""
    log_days: float | None = None
    """Older entries are taken away; None keeps all."""
    prices: Path | None = None
    """File of prices by the model's name (`metaprobe.llms.pricing.read_prices`), for the cost of answers in the log;
    without one, OpenAI's own models at OpenAI have their list price and others none."""
    host: str = "127.0.0.1"
    port: int = 8080
    """0 takes a free one."""
    auth: bool = True
    """Whether callers need a key; without, only a loopback `host` is taken."""
    api_key_env: str = "METAPROBE_API_KEY"
    """Environment variable with the callers' keys, each KEY or NAME=KEY, separated by commas or white space."""
    keys_file: Path | None = None
    """TOML with a table a caller: `[NAME]`, `key` or its `sha256`, and if need be `per_minute` and `in_flight`."""
    key_per_minute: float | None = None
    """Requests of one key in a minute, in one worker, where the file says nothing else; None for any number."""
    key_in_flight: int | None = None
    """Requests of one key that are answered at one time, in one worker; None for any number."""
    upstream_key_env: str = "METAPROBE_UPSTREAM_KEY"
    """Environment variable with the key for the upstream; where it is empty, the caller's own is forwarded."""
    forward_headers: tuple[str, ...] = ()
    """Request headers that reach the upstream beside those in `metaprobe.serving.http.upstream`."""
    top_logprobs: int = 5
    """Alternatives asked for a token, where the checkpoint's features need them and the caller asked for none."""
    max_body_bytes: int = 16 << 20
    """Of a request."""
    max_answer_bytes: int = 64 << 20
    """Of an answer of the upstream that is read to be scored; a longer stream passes on unscored."""
    timeout_s: float = 600.0
    """Longest silence of the upstream."""
    connect_timeout_s: float = 10.0
    header_timeout_s: float = 15.0
    """Within which the header of a request must have arrived, from its connection or its first byte on."""
    body_timeout_s: float = 30.0
    """Within which a request must have arrived, once its header has."""
    send_timeout_s: float = 120.0
    """Longest time in which a caller takes nothing of an answer that waits for it."""
    max_batch: int = 1024
    """Responses in one request to `/v1/score`."""
    max_scored_tokens: int = 1 << 20
    """Tokens with log-probabilities in one request to `/v1/score`, and in one answer of the upstream."""
    max_concurrency: int = 256
    """Requests in flight in one worker; more are answered 503 at once."""
    max_connections: int = 512
    """Connections open in one worker; for one more, the one idle for longest is closed."""
    retry_after_s: int = 1
    """What a 503 says about when to come again."""
    grace_s: int = 60
    """How long a shutdown waits for requests in flight."""
    workers: int = 1
    """Processes, each with a session of its own."""

    def __post_init__(self) -> None:
        try:
            FlagOptions.__post_init__(self)
        except ContractMismatch as error:
            raise SettingsError(str(error)) from error
        for name in _POSITIVE:
            if not getattr(self, name) > 0:
                raise SettingsError(f"{name} is {getattr(self, name)}; expected more than 0")
        for name in ("key_per_minute", "key_in_flight"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise SettingsError(f"{name} is {value}; expected more than 0, or None")
        if not 0 <= self.canary_share <= 1:
            raise SettingsError(f"canary_share is {self.canary_share}; expected a share from 0 to 1")
        for name, alpha in (("gate_stop", self.gate_stop), ("gate_escalate", self.gate_escalate)):
            if alpha is not None and not 0 < alpha < 1:
                raise SettingsError(f"{name} is {alpha}; expected a share between 0 and 1")
        if self.gate_stop is not None and self.gate_escalate is not None and self.gate_escalate > self.gate_stop:
            raise SettingsError(
                f"gate_escalate {self.gate_escalate} is above gate_stop {self.gate_stop}: what is escalated begins "
                "worse than what is stopped; give the smaller share to escalate"
            )
        if not _WORD.fullmatch(self.gate_finish_reason) or self.gate_finish_reason in _CALLING:
            raise SettingsError(
                f"gate_finish_reason is {self.gate_finish_reason!r}; expected a word of letters, digits and _ that has"
                " no client carry out a tool call, such as content_filter or length"
            )
        if not 0 <= self.port < 65536 or not 0 <= self.top_logprobs <= 20 or self.grace_s < 0:
            raise SettingsError(
                f"port {self.port}, top_logprobs {self.top_logprobs}, grace_s {self.grace_s}: expected a port up to"
                " 65535, 0 to 20 alternatives, and at least 0 seconds"
            )
        if not self.auth and not is_loopback(self.host):
            raise SettingsError(
                f"without keys anyone who reaches {self.host} could use the upstream: bind to 127.0.0.1, or put keys"
                f" into {self.api_key_env} and leave authentication on"
            )
        for name in self.forward_headers:
            if name.lower() in NEVER_FORWARDED or not HEADER_NAME.fullmatch(name):
                raise SettingsError(f"header {name!r} is not one that may be handed on to the upstream")
        if self.gate is not None and not self.upstream:
            raise SettingsError(
                "a gate ends answers of an upstream, and no upstream is given: name one, or leave the gate out"
            )
        if self.upstream:
            _check_upstream(self.upstream)
        self._check_log()

    def _check_log(self) -> None:
        if not self.log and (
            self.log_texts or self.log_logprobs or self.log_days is not None or self.prices or self.log_spool
        ):
            raise SettingsError("something is to be logged, and no log is given: name one (--log scores.sqlite)")
        if self.log_days is not None and not self.log_days > 0:
            raise SettingsError(f"log_days is {self.log_days}; expected more than 0")
        secrets = re.search(r"[?&;](?:ssl)?password=", self.log, re.IGNORECASE)
        if re.search(r"://[^/@]*:[^/@]*@", self.log) or secrets:
            raise SettingsError(
                "the log's URL holds a password, which every process of this machine can read; leave it out, and put it"
                " into the environment (PGPASSWORD) or into ~/.pgpass"
            )

    @property
    def run_by_model(self) -> dict[str, str]:
        """The run that each model's answers are of, by its name; under "" that of the first checkpoint."""
        found = {}
        for written in self.base_rates:
            name, equals, run = written.partition("=")
            named = equals and "|" not in name  # a run's own name may hold the sign: my-model|sums|shots=3
            if (key := name if named else "") in found:
                raise SettingsError(f"two runs are given for {key or 'the first checkpoint'!r}; give each model one")
            found[key] = run if named else written
        return found

    def upstream_key(self) -> str:
        """The key for the upstream, from the environment; empty where the caller's own is forwarded."""
        key = os.environ.get(self.upstream_key_env, "").strip()
        if not (key.isascii() and key.isprintable()):
            raise SettingsError(f"{self.upstream_key_env} holds characters that no header can carry")
        return key


def split_name(written: str) -> tuple[str, str]:
    """`NAME=CHECKPOINT` as (name, checkpoint); the name is empty where there is none."""
    name, equals, location = written.partition("=")
    return (name, location) if equals and name and location and not Path(written).exists() else ("", written)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound to `host`."""
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
