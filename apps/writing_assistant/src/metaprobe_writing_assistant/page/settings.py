"""Settings of the page: how it is served, and which models answer on it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from metaprobe.production.http.settings import is_loopback
from metaprobe.records.errors import RecordError

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
API_PREFIX = "openai:"
DEFAULT_PLACE = "the address in OPENAI_BASE_URL, or OpenAI"
EVERY_MODULE = "every module"


@dataclass(frozen=True, slots=True)
class ModelPlace:
    """A model as the page names it."""

    part: str
    """The stage or agent for which it answers; `every module` for the default."""
    name: str
    place: str
    """The address to which texts are sent; empty for a model on this machine."""
    weak: bool = False
    """Whether it is too small to teach anybody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssistSettings:
    """Settings of one page. Raises `RecordError` if other machines could reach it under a name that is not listed."""

    sessions: Path
    """The file that holds texts, versions, turns and studies."""
    models: tuple[ModelPlace, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8090
    """0 takes a free port."""
    allowed_hosts: tuple[str, ...] = ()
    """Further names under which the page may be requested, such as that of a proxy with a password."""
    study: bool = False
    """Whether the page runs a study: conditions hidden, in balanced order, and a survey at the end."""
    max_body_bytes: int = 4 << 20
    """Largest body of a request; 50,000 words are about 300 kB."""
    names: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        if not is_loopback(self.host):
            raise RecordError(
                f"host is {self.host!r}: the page has no password, so it listens on this machine only (127.0.0.1). For "
                "others, put a proxy with a login in front of it, and name the proxy's host with --allow-host"
            )
        if not 0 <= self.port < 65536:
            raise RecordError(f"port is {self.port}; expected 0 to 65535")
        names = {*LOOPBACK_NAMES, self.host, *self.allowed_hosts}
        object.__setattr__(self, "names", frozenset(name.lower() for name in names))


def places_of(spec_of_part: dict[str, str], weak_models: Sequence[str]) -> tuple[ModelPlace, ...]:
    """Returns the models of `parse_models` as the page names them. `weak_models` has the names of models too small
    to teach.
    """
    places = []
    for part, spec in sorted(spec_of_part.items()):
        name, place = Path(spec).name or spec, ""
        if spec.startswith(API_PREFIX):
            name, _, url = spec.removeprefix(API_PREFIX).partition("@")
            address = urlsplit(url)  # shown without user, password and query, which could be secrets
            port = f":{address.port}" if address.port else ""
            place = f"{address.scheme}://{address.hostname}{port}" if url else DEFAULT_PLACE
        places.append(ModelPlace(part or EVERY_MODULE, name, place, weak=spec in weak_models))
    return tuple(places)
