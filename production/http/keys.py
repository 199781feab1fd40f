"""Holds callers' keys, their names, and how many requests each caller may make."""

import hashlib
import hmac
import math
import os
import re
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from metaprobe.production.http.bodies import Refusal
from metaprobe.production.http.settings import Settings, SettingsError

MIN_KEY_LENGTH = 16
_NAME_AND_KEY = re.compile(rf"([A-Za-z0-9._-]{{1,64}})=(.{{{MIN_KEY_LENGTH},}})")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class Caller:
    """The holder of one key, and the limits for this caller in one worker."""

    digest: bytes
    """SHA-256 of the key; the key itself is not kept."""
    name: str = ""
    """Name of the caller; empty for a key without a name."""
    per_minute: float | None = None
    """Most requests in a minute, on average and at once; None for no limit."""
    in_flight: int | None = None
    """Most concurrent requests; None for no limit."""
    admin: bool = True
    """Whether the caller sees and labels answers of all callers; otherwise only answers requested with this key."""


class Keys:
    """The keys of all callers."""

    def __init__(self, callers: tuple[Caller, ...]) -> None:
        self._callers = callers

    @classmethod
    def of(cls, settings: Settings) -> "Keys":
        """Returns the keys in the environment and in the file that the settings name; no keys if authentication is off.

        Raises `SettingsError` if there is no key, if a key protects nothing, or if the file cannot be read.
        """
        if not settings.auth:
            return cls(())
        callers = []
        limits = settings.key_per_minute, settings.key_in_flight
        for word in os.environ.get(settings.api_key_env, "").replace(",", " ").split():
            name_and_key = _NAME_AND_KEY.fullmatch(word)
            name, key = name_and_key.groups() if name_and_key else ("", word)
            callers.append(Caller(_digest(key, settings.api_key_env), name, *limits, admin=not name))
        callers += _from_file(settings)
        if not callers:
            raise SettingsError(
                f"no key for callers: put one or several (separated by commas) into the environment variable "
                f"{settings.api_key_env}, name a file of keys, or switch authentication off (--no-auth; loopback only)"
            )
        if len({caller.digest for caller in callers}) < len(callers):
            raise SettingsError("two callers have the same key, so one cannot be told from the other: make one anew")
        return cls(tuple(callers))

    def caller(self, key: str) -> Caller | None:
        """Returns the caller with this key; None if the key is unknown."""
        digest = hashlib.sha256(key.strip().encode("utf-8", "surrogateescape")).digest()
        holder = None
        for caller in self._callers:  # always all callers: the time must not reveal which one it was
            holder = caller if hmac.compare_digest(digest, caller.digest) else holder
        return holder

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.caller(key) is not None


ANYONE = Caller(b"")
"""The caller if no key is required: somebody on this machine."""


class KeyLimits:
    """Counts the latest requests of every caller, in one worker."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._requests_left: dict[bytes, tuple[float, float]] = {}
        """Maps a caller's digest to how many requests the caller may make now, and the time of that count.

        The number grows by `per_minute` each minute, up to `per_minute`.
        """
        self._in_flight: dict[bytes, int] = {}

    def enter(self, caller: Caller) -> None:
        """Counts a request. Raises `Refusal` (429, with `Retry-After`) if the caller's limit is reached."""
        if caller.in_flight is not None and self._in_flight.get(caller.digest, 0) >= caller.in_flight:
            message = f"{caller.in_flight} requests of this key are being answered, and no more may be at one time"
            raise Refusal(429, "key_busy", message, {"retry-after": "1"})
        if caller.per_minute is not None:
            now = self._clock()
            bucket_size = max(caller.per_minute, 1.0)
            requests_left, counted_at = self._requests_left.get(caller.digest, (bucket_size, now))
            requests_left = min(bucket_size, requests_left + (now - counted_at) * caller.per_minute / 60)
            if requests_left < 1:
                wait_s = math.ceil((1 - requests_left) * 60 / caller.per_minute)
                message = f"this key may ask {caller.per_minute:g} times a minute; try again in {wait_s} s"
                raise Refusal(429, "rate_limited", message, {"retry-after": str(wait_s)})
            self._requests_left[caller.digest] = requests_left - 1, now
        self._in_flight[caller.digest] = self._in_flight.get(caller.digest, 0) + 1

    def leave(self, caller: Caller) -> None:
        """Counts a request as answered."""
        self._in_flight[caller.digest] -= 1


def _from_file(settings: Settings) -> Iterator[Caller]:
    """Reads callers from TOML. Each caller has one table, named after the caller."""
    path = settings.keys_file
    if path is None:
        return
    try:
        tables = tomllib.loads(Path(path).read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SettingsError(f"the file of keys {path} is no TOML ({error}); expected [NAME] and key = ...") from error
    for name, table in tables.items():
        where = f"[{name[:64]}] in {path}"
        try:
            entry = msgspec.convert(table, _CallerTable)
            if not _NAME.fullmatch(name) or (entry.key is None) == (entry.sha256 is None):
                raise msgspec.ValidationError("another name, or not just one of key and sha256")
        except msgspec.ValidationError as error:  # which holds no value
            raise SettingsError(
                f"{where} is no caller ({error}); expected a name of letters, digits, . _ and -, under it either `key` "
                "or `sha256` (of the key, 64 hexadecimal digits), and besides `per_minute`, `in_flight` and `admin` at "
                "most"
            ) from error
        yield Caller(
            _digest(entry.key, where) if entry.key is not None else bytes.fromhex(entry.sha256 or ""),
            name,
            entry.per_minute or settings.key_per_minute,
            entry.in_flight or settings.key_in_flight,
            entry.admin,
        )


class _CallerTable(msgspec.Struct, forbid_unknown_fields=True):
    """One caller's table in the keys file."""

    key: str | None = None
    sha256: Annotated[str, Meta(pattern="^[0-9A-Fa-f]{64}$")] | None = None
    per_minute: Annotated[float, Meta(gt=0)] | None = None
    in_flight: Annotated[int, Meta(gt=0)] | None = None
    admin: bool = False


def _digest(key: str, where: str) -> bytes:
    """Returns the digest of a key. Raises `SettingsError`, without the key, for a key that protects nothing."""
    if len(key) < MIN_KEY_LENGTH:
        raise SettingsError(
            f"{where} holds a key of fewer than {MIN_KEY_LENGTH} characters, which can be guessed;"
            " `python -c 'import secrets; print(secrets.token_urlsafe(32))'` makes one that cannot"
        )
    if not key.isascii():
        raise SettingsError(f"{where} holds a key with characters that no header can carry (not ASCII)")
    return hashlib.sha256(key.encode()).digest()
