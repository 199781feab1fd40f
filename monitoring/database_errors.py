"""What may be said of a database's error: its kind. Its text names hosts, ports, users and sometimes passwords."""

_KNOWN = (
    "connection refused",
    "connection timed out",
    "connection timeout expired",
    "timeout expired",
    "connection reset by peer",
    "network is unreachable",
    "no route to host",
    "server closed the connection unexpectedly",
    "connection is lost",
    "terminating connection due to administrator command",
    "the database system is starting up",
    "the database system is shutting down",
    "the database system is in recovery mode",
    "name or service not known",
    "temporary failure in name resolution",
    "could not translate host name",
    "failed to resolve host",
    "no such file or directory",
    "password authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "role does not exist",
    "database does not exist",
    "permission denied",
    "too many clients",
    "remaining connection slots are reserved",
    "no space left on device",
    "could not extend file",
    "out of memory",
    "read-only transaction",
    "deadlock detected",
    "lock timeout",
    "statement timeout",
    "ssl",
    "certificate verify failed",
    "database is locked",
    "disk i/o error",
    "database or disk is full",
    "unable to open database file",
    "could not parse",
    "can't load plugin",
    "no module named",
)
"""What is repeated of an error's text, in lower case: how databases and systems put what went wrong."""


def kind_of(error: BaseException) -> str:
    """The error's class, its SQLSTATE where it has one, and what is known of its text; nothing that it names."""
    problem = getattr(error, "orig", None) or error
    # Names stand in quotation marks: 'role "log" does not exist'.
    text = " ".join(_without_quoted(str(problem)).lower().split())
    said = [type(problem).__name__]
    if code := getattr(problem, "sqlstate", None) or getattr(problem, "pgcode", None):
        said.append(f"SQLSTATE {code}")
    return ": ".join([", ".join(said), *filter(None, [" and ".join(known for known in _KNOWN if known in text)])])


def _without_quoted(text: str) -> str:
    return "".join(text.split('"')[::2])
