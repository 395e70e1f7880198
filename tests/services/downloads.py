"""Files to download over https from loopback, from a server whose certificate only its own CA vouches for."""

from __future__ import annotations

import contextlib
import http.server
import ssl
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.testing.certificates import Certificates


@dataclass(frozen=True, slots=True)
class Downloads:
    """Where the files are, and the CA to trust."""

    url: str
    ca: Path


@contextlib.contextmanager
def serve_downloads(folder: Path, files: Mapping[str, bytes]) -> Iterator[Downloads]:
    """Serve files by their names, until the end of the block. `folder` gets the certificates."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = files.get(self.path.removeprefix("/"))
            self.send_response(200 if found is not None else 404)
            self.send_header("Content-Length", str(len(found or b"")))
            self.end_headers()
            self.wfile.write(found or b"")

        def log_message(self, *_: object) -> None:
            pass

    issued = Certificates(folder).control(hosts=["127.0.0.1"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.cert, issued.key)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield Downloads(f"https://127.0.0.1:{server.server_address[1]}", Path(issued.ca))
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
