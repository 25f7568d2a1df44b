"""A small HTTP store with configurable bandwidth and latency: HEAD and ranged GET of the files of a directory."""

import http.server
import pathlib
import threading
import time

PIECE_BYTES = 16 << 10


class Bucket:
    """A token bucket that limits the bandwidth of all requests together."""

    def __init__(self, bytes_per_s):
        self.bytes_per_s = bytes_per_s
        self.lock = threading.Lock()
        self.free_at = 0.0

    def take(self, count):
        if not self.bytes_per_s:
            return
        with self.lock:
            # Unused bandwidth expires after 50 ms.
            start = max(self.free_at, time.monotonic() - 0.05)
            self.free_at = start + count / self.bytes_per_s
            wait = self.free_at - time.monotonic()
        if wait > 0:
            time.sleep(wait)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        path = self.path_of()
        if path:
            self.send_head(200, path, path.stat().st_size)

    def do_GET(self):
        path = self.path_of()
        if not path:
            return
        size = path.stat().st_size
        start, end = self.range_of(size)
        time.sleep(self.server.seconds_per_request)
        self.send_head(206, path, end - start, f"bytes {start}-{end - 1}/{size}")
        with path.open("rb") as file:
            file.seek(start)
            for piece in range(start, end, PIECE_BYTES):
                data = file.read(min(PIECE_BYTES, end - piece))
                self.server.bucket.take(len(data))
                self.wfile.write(data)

    def path_of(self):
        path = self.server.folder / self.path.lstrip("/")
        if path.is_file():
            return path
        self.send_error(404)
        return None

    def range_of(self, size):
        given = self.headers.get("Range", "").removeprefix("bytes=")
        first, _, last = given.partition("-")
        return int(first or 0), min(size, int(last) + 1) if last else size

    def send_head(self, status, path, length, content_range=None):
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{path.name}-{path.stat().st_size}"')
        self.send_header("Last-Modified", self.date_time_string(path.stat().st_mtime))
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, *_):
        """Ignores clients that disconnect early."""


class Store:
    """The store as a context manager. `urls` lists its objects. The store is not limited until `slow` is called."""

    def __init__(self, folder):
        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.folder = pathlib.Path(folder)
        self.slow(0, 0.0)
        port = self.server.server_address[1]
        self.urls = [f"http://127.0.0.1:{port}/{path.name}" for path in sorted(pathlib.Path(folder).iterdir())]

    def slow(self, bytes_per_s, seconds_per_request):
        self.server.bucket = Bucket(bytes_per_s)
        self.server.seconds_per_request = seconds_per_request

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
