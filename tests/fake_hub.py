"""A Hugging Face hub on this machine: the endpoints that huggingface_hub uses to read and to write a model."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from local_server import Asked, Reply, serving

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

    def reply(self, request: Asked) -> Reply:
        """Answers as the hub does."""
        self.requests.append((request.method, request.path))
        return self._written(request) if request.method == "POST" else self._resolved(request)

    def _resolved(self, request: Asked) -> Reply:
        match = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", request.path)
        history = self.commits.get(match[1]) if match else None
        if match is None or history is None or match[1] in self.private:
            return Reply(b"", 404, {"X-Error-Code": "RepoNotFound"})
        oid = list(history)[-1] if match[2] == "main" else match[2]
        if oid not in history:
            return Reply(b"", 404, {"X-Error-Code": "RevisionNotFound"})
        if match[3] not in history[oid]:
            return Reply(b"", 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": oid})
        data = history[oid][match[3]]
        etag = {"X-Repo-Commit": oid, "ETag": f'"{hashlib.sha1(data).hexdigest()}"'}
        return Reply(data, 200, etag, self.sizes.get(match[3]) if request.method == "HEAD" else None)

    def _written(self, request: Asked) -> Reply:
        if request.path == "/api/repos/create":
            asked = request.json()
            repository = f"{asked.get('organization') or 'me'}/{asked['name']}"
            self.commits.setdefault(repository, {})
            return Reply.of({"url": f"{self.url}/{repository}"})
        if request.path == "/api/validate-yaml":
            return Reply.of({"errors": [], "warnings": []})
        [repository] = re.findall(r"/api/models/([^/]+/[^/]+)/", request.path)
        if repository in self.private:
            return Reply(b"", 403, {})
        if "/preupload/" in request.path:
            files = request.json()["files"]
            modes = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]
            return Reply.of({"files": modes})
        lines = [json.loads(line) for line in request.body.splitlines()]
        files = {x["value"]["path"]: base64.b64decode(x["value"]["content"]) for x in lines if x["key"] == "file"}
        oid = self.commit(repository, files)
        return Reply.of({"success": True, "commitOid": oid, "commitUrl": f"{self.url}/{repository}/commit/{oid}"})


@contextmanager
def running(hub: FakeHub) -> Iterator[FakeHub]:
    with serving(hub.reply) as hub.url:
        yield hub
