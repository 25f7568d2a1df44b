"""HTTP servers that run beside a test."""

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """Answers requests, and logs nothing."""

    # The head and the body are one write. Otherwise the kernel delays the body until the head is acknowledged.
    wbufsize = -1

    def answer(self, status: int, body: bytes | str, headers: dict | None = None) -> None:
        content = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def running(server: ThreadingHTTPServer, scheme: str = "http") -> Iterator[ThreadingHTTPServer]:
    """Runs a server, whose URL is `server.url`, until the end of the block."""
    host, port = server.server_address[:2]
    server.url = f"{scheme}://{host}:{port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
