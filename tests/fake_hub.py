"""A Hugging Face hub on this machine: the endpoints that huggingface_hub uses to read and to write a model."""

import base64
import hashlib
import json
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

Files = dict[str, bytes]


@dataclass
class FakeHub:
    """Repositories by name, each a history of commits; tests spoil what it answers."""

    commits: dict[str, dict[str, Files]] = field(default_factory=dict)
    """Repository -> commit -> its files; `main` is the last commit."""
    requests: list[tuple[str, str]] = field(default_factory=list)
    """Method and path of every one."""
    sizes: dict[str, int] = field(default_factory=dict)
    """File -> the size that HEAD claims."""
    private: set[str] = field(default_factory=set)
    url: str = ""

    def commit(self, repository: str, files: Files) -> str:
        """Files added in a new commit, and its hash."""
        history = self.commits.setdefault(repository, {})
        whole = (list(history.values())[-1] if history else {}) | files
        oid = hashlib.sha1(repr((len(history), sorted(whole.items()))).encode()).hexdigest()
        history[oid] = whole
        return oid

    def got(self, name: str) -> bool:
        """Whether the bytes of a file were asked for."""
        return any(method == "GET" and path.endswith(f"/{name}") for method, path in self.requests)


@contextmanager
def running(hub: FakeHub):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else each answer waits 40 ms for the acknowledgement of its head

        def do_HEAD(self):
            self.resolve()

        def do_GET(self):
            self.resolve()

        def resolve(self):
            hub.requests.append((self.command, self.path))
            match = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.path)
            history = hub.commits.get(match[1]) if match else None
            if history is None or match[1] in hub.private:
                return self.answer(404, b"", {"X-Error-Code": "RepoNotFound"})
            oid = list(history)[-1] if match[2] == "main" else match[2]
            if oid not in history:
                return self.answer(404, b"", {"X-Error-Code": "RevisionNotFound"})
            if match[3] not in history[oid]:
                return self.answer(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": oid})
            data = history[oid][match[3]]
            etag = {"X-Repo-Commit": oid, "ETag": f'"{hashlib.sha1(data).hexdigest()}"'}
            return self.answer(200, data, etag, size=hub.sizes.get(match[3]) if self.command == "HEAD" else None)

        def do_POST(self):
            hub.requests.append((self.command, self.path))
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/api/repos/create":
                asked = json.loads(body)
                repository = f"{asked.get('organization') or 'me'}/{asked['name']}"
                hub.commits.setdefault(repository, {})
                return self.json({"url": f"{hub.url}/{repository}"})
            if self.path == "/api/validate-yaml":
                return self.json({"errors": [], "warnings": []})
            repository = re.search(r"/api/models/([^/]+/[^/]+)/", self.path)[1]
            if repository in hub.private:
                return self.answer(403, b"", {})
            if "/preupload/" in self.path:
                modes = [
                    {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False}
                    for f in json.loads(body)["files"]
                ]
                return self.json({"files": modes})
            lines = [json.loads(line) for line in body.splitlines()]
            files = {x["value"]["path"]: base64.b64decode(x["value"]["content"]) for x in lines if x["key"] == "file"}
            oid = hub.commit(repository, files)
            return self.json({"success": True, "commitOid": oid, "commitUrl": f"{hub.url}/{repository}/commit/{oid}"})

        def json(self, value):
            self.answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

        def answer(self, status, data, headers, *, size=None):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data) if size is None else size))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
