"""A tiny container registry on loopback: one image, with or without a password; the distribution API v2 over HTTP.

Images are made from a root file system (`tests.services.engine`). A pull of what is not there, a wrong password and a
server error are answered as real registries do. Downloads can be made to hang.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


@dataclass(eq=False)
class Registry:
    """What is served. Every field may be changed while it serves."""

    port: int = 0
    #: `user:password`, or empty when everybody may pull.
    login: str = ""
    #: Answer everything with this status, when it is not 0.
    broken_with: int = 0
    #: Only requests whose path has this in it.
    broken_below: str = ""
    #: Whether nobody may read what is there, whatever the login.
    closed: bool = False
    #: Send one half of each layer and then nothing, until the other end goes away.
    hangs: bool = False
    #: Downloads that hang now.
    hanging: int = 0
    manifests: dict[str, bytes] = field(default_factory=dict, repr=False)
    blobs: dict[str, bytes] = field(default_factory=dict, repr=False)
    pulls: int = 0

    def add(self, name: str, tag: str, layer: bytes, config: dict[str, object]) -> str:
        """Serve an image of one uncompressed layer; its name for a pull is returned."""
        blob = json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": config,
                "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
            }
        ).encode()
        for each in (layer, blob):
            self.blobs[_digest(each)] = each
        manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": _MANIFEST,
                "config": {
                    "mediaType": "application/vnd.docker.container.image.v1+json",
                    "size": len(blob),
                    "digest": _digest(blob),
                },
                "layers": [
                    {
                        "mediaType": "application/vnd.docker.image.rootfs.diff.tar",
                        "size": len(layer),
                        "digest": _digest(layer),
                    }
                ],
            }
        ).encode()
        self.manifests[f"{name}:{tag}"] = self.manifests[f"{name}:{_digest(manifest)}"] = manifest
        return f"127.0.0.1:{self.port}/{name}:{tag}"


@contextlib.contextmanager
def serve_registry() -> Iterator[Registry]:
    """A registry until the end of the block."""
    registry = Registry()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def log_message(self, *_: object) -> None:
            pass

        def _answer(self, *, with_body: bool) -> None:
            status, kind, body, headers = _answer_to(registry, self.path, self.headers.get("Authorization", ""))
            self.send_response(status)
            self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            if with_body and registry.hangs and "/blobs/" in self.path:
                self.wfile.write(body[: len(body) // 2])
                self.wfile.flush()
                registry.hanging += 1
                while self.connection.recv(1):
                    pass
                registry.hanging -= 1
                self.close_connection = True
            elif with_body:
                self.wfile.write(body)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _answer_to(registry: Registry, path: str, given: str) -> tuple[int, str, bytes, dict[str, str]]:
    if registry.broken_with and registry.broken_below in path:
        code = "TOOMANYREQUESTS" if registry.broken_with == 429 else "UNKNOWN"
        return registry.broken_with, "application/json", _error(code, "broken"), {"Retry-After": "0"}
    if registry.login and given != f"Basic {base64.b64encode(registry.login.encode()).decode()}":
        challenge = {"WWW-Authenticate": 'Basic realm="test"'}
        return 401, "application/json", _error("UNAUTHORIZED", "authentication required"), challenge
    parts = path.split("?", maxsplit=1)[0].strip("/").split("/")
    if parts == ["v2"]:
        return 200, "application/json", b"{}", {}
    if len(parts) >= 4 and parts[-2] == "manifests":
        return _manifest(registry, "/".join(parts[1:-2]), parts[-1])
    if len(parts) >= 4 and parts[-2] == "blobs" and parts[-1] in registry.blobs:
        blob = registry.blobs[parts[-1]]
        return 200, "application/octet-stream", blob, {"Docker-Content-Digest": parts[-1]}
    return 404, "application/json", _error("NAME_UNKNOWN", "repository name not known to registry"), {}


def _manifest(registry: Registry, name: str, tag: str) -> tuple[int, str, bytes, dict[str, str]]:
    if registry.closed:
        return 403, "application/json", _error("DENIED", "requested access to the resource is denied"), {}
    found = registry.manifests.get(f"{name}:{tag}")
    if found is not None:
        registry.pulls += 1
        return 200, _MANIFEST, found, {"Docker-Content-Digest": _digest(found)}
    if any(each.startswith(f"{name}:") for each in registry.manifests):
        return 404, "application/json", _error("MANIFEST_UNKNOWN", "manifest unknown"), {}
    return 404, "application/json", _error("NAME_UNKNOWN", "repository name not known to registry"), {}


def _error(code: str, message: str) -> bytes:
    return json.dumps({"errors": [{"code": code, "message": message}]}).encode()


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
