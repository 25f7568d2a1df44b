#!/usr/bin/env python3
"""Measures the memory of a worker whose HTTP server answers a small range with 1.8 GB.

A server of this process states the correct size of a shard, and answers each range with 1.8 GB: once with the length of the response,
and once without it, until the connection closes. The Markdown table contains the peak resident memory of a run, the bytes that the
server could send, and the error message.

Exits with status 1 if a run does not fail, if its message has several lines, or if the peak is not below 100 MiB. Runs
target/release/feedline, or FEEDLINE. `make long-response` builds Feedline in release mode and runs this script.
"""

import http.server
import os
import pathlib
import subprocess
import sys
import tempfile
import threading

import usage
from limits import Limits

ROOT = pathlib.Path(__file__).resolve().parent.parent
FEEDLINE = pathlib.Path(os.environ.get("FEEDLINE", ROOT / "target/release/feedline"))
SHARD_BYTES, RESPONSE_BYTES, PIECE_BYTES = 4096, 1_800_000_000, 1 << 20
MAX_PEAK_MIB = 100

PIPELINE = """
name: long-response
source: {{ url: "http://127.0.0.1:{port}/data.tfrecord", format: tfrecord }}
operators:
  - batch: {{ size: 4 }}
"""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.send_response(200)
        self.send_header("Content-Length", str(SHARD_BYTES))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", '"1"')
        self.end_headers()

    def do_GET(self):
        wanted = self.headers.get("Range", f"bytes=0-{SHARD_BYTES - 1}").removeprefix("bytes=")
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {wanted}/{SHARD_BYTES}")
        self.send_header("ETag", '"1"')
        if self.server.states_length:
            self.send_header("Content-Length", str(RESPONSE_BYTES))
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        piece = bytes(PIECE_BYTES)
        try:
            for _ in range(RESPONSE_BYTES // PIECE_BYTES):
                self.wfile.write(piece)
                self.server.sent_bytes += PIECE_BYTES
        except OSError:
            pass


def run(states_length, scratch):
    """Returns the exit status, the peak memory in MiB, the MB that the server sent, and the lines of the error message."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.states_length, server.sent_bytes = states_length, 0
        threading.Thread(target=server.serve_forever, daemon=True).start()
        file = scratch / "long-response.yaml"
        file.write_text(PIPELINE.format(port=server.server_address[1]), encoding="utf-8")
        command = [str(FEEDLINE), "run", str(file), "--memory", "256MiB"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        message = process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        server.shutdown()
        return process.returncode, used.ru_maxrss / 1024, server.sent_bytes / 1e6, message.strip().splitlines()


def main():
    usage.check(__doc__)
    if not FEEDLINE.exists():
        sys.exit(f"{FEEDLINE} does not exist: build it with `make long-response`")
    limits = Limits()
    print("| length of the response | peak memory | sent | message |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for name, states_length in [("stated", True), ("not stated", False)]:
            status, peak, sent, message = run(states_length, pathlib.Path(folder))
            failed = limits.mark(status != 0 and len(message) == 1, f"{name}: status {status} and {len(message)} lines")
            over = limits.mark(peak < MAX_PEAK_MIB, f"{name}: a peak of {peak:.0f} MiB")
            print(f"| {name} | {peak:.0f} MiB{over} | {sent:.0f} MB | {' '.join(message)}{failed} |")
    limits.end()


if __name__ == "__main__":
    main()
