"""Where a score log can be in tests: a SQLite file, and a PostgreSQL server of this machine where there is one."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def has_postgres() -> bool:
    return all(shutil.which(name) for name in ("initdb", "postgres", "pg_ctl"))


class PostgresServer:
    """A server that can be stopped and started again."""

    def __init__(self, control: Any, port: int) -> None:
        self._control = control
        self.port = port
        self.url = f"postgresql+psycopg://log@127.0.0.1:{port}/"
        """The start of URLs, to which the name of a database is added; see `database`."""

    def start(self) -> None:
        self._control("start")

    def stop(self) -> None:
        self._control("stop", "-m", "immediate")


@contextmanager
def postgres() -> Iterator[str]:
    """The start of URLs of a fresh server on loopback, to which the name of a database is added; see `database`."""
    with postgres_server() as server:
        yield server.url


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A fresh server on loopback, which runs."""
    # It does not run as root, so its folder must be reachable by the user of that name.
    as_user: dict[str, Any] = {"user": "postgres"} if os.geteuid() == 0 else {}
    folder = Path(tempfile.mkdtemp(prefix="metaprobe-postgres-"))
    if as_user:
        shutil.chown(folder, "postgres")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet: dict[str, Any] = {"check": True, "cwd": "/", "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    data = str(folder / "data")
    options = f"-c listen_addresses=127.0.0.1 -c port={port} -c unix_socket_directories= -c fsync=off"
    subprocess.run(["initdb", "-D", data, "-U", "log", "-A", "trust", "-E", "UTF8", "--no-sync"], **quiet, **as_user)

    def control(*words: str) -> None:
        subprocess.run(["pg_ctl", "-D", data, "-w", "-o", options, *words], **quiet, **as_user)

    control("start")
    try:
        yield PostgresServer(control, port)
    finally:
        with suppress(subprocess.CalledProcessError):  # a test may have stopped it
            control("stop", "-m", "immediate")
        shutil.rmtree(folder, ignore_errors=True)


def database(server: str) -> str:
    """The URL of a new, empty database of that server."""
    import psycopg

    name = f"log_{uuid.uuid4().hex}"
    with psycopg.connect(server.replace("+psycopg", "") + "postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return server + name


def wait_until(done: Any, *, seconds: float = 60.0) -> None:
    """Returns once `done()` is true; fails after that time."""
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
