"""Metadata services of AWS and Google Cloud, and a network namespace that has their addresses."""

import contextlib
import ctypes
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer

from conftest import require
from servers import Handler, running

CLONE_NEWNET = 0x40000000
MACHINE, CONTAINER = "169.254.169.254", "169.254.170.2"
# A path of the service for containers, which needs no token.
OF_THE_TASK = "/v2/credentials/of-the-task"


@contextlib.contextmanager
def namespace() -> Iterator[None]:
    """Gives the calling thread, and the processes and threads that it starts, a network of their own with these addresses."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net") as outside:
        is_possible = os.geteuid() == 0 and libc.unshare(CLONE_NEWNET) == 0
        require(None if is_possible else "a network namespace with the addresses of metadata services needs root")
        try:
            for arguments in (["link", "set", "lo", "up"], *(["addr", "add", f"{one}/32", "dev", "lo"] for one in (MACHINE, CONTAINER))):
                subprocess.run(["ip", *arguments], check=True)
            yield
        finally:
            libc.setns(outside.fileno(), CLONE_NEWNET)


class AwsMetadata(Handler):
    """The container credentials and IMDSv2 of AWS. IMDSv1 requests, without a token, are rejected."""

    token = "token-of-the-session"

    def do_PUT(self) -> None:
        is_token = self.path == "/latest/api/token" and self.headers["X-aws-ec2-metadata-token-ttl-seconds"]
        self.answer(200 if is_token else 400, self.token)

    def do_GET(self) -> None:
        self.server.requests.append((self.server.server_address[0], self.path))
        if self.path == OF_THE_TASK:
            is_allowed = True
        elif self.path == "/container":
            is_allowed = self.headers["Authorization"] == "token-of-the-container"
        else:
            is_allowed = self.headers["X-aws-ec2-metadata-token"] == self.token
        roles = "/latest/meta-data/iam/security-credentials/"
        if self.path not in (OF_THE_TASK, "/container", roles, f"{roles}a-role"):
            return self.answer(404, "")
        body = "a-role" if self.path == roles else json.dumps(self.server.keys())
        self.answer(200 if is_allowed else 401, body)


class GoogleMetadata(AwsMetadata):
    """The token of a machine's service account."""

    def do_GET(self) -> None:
        self.server.requests.append((self.server.server_address[0], self.path))
        path = "/computeMetadata/v1/instance/service-accounts/default/token"
        is_allowed = self.path.split("?")[0] == path and self.headers["Metadata-Flavor"] == "Google"
        self.answer(200 if is_allowed else 403, json.dumps(self.server.keys()))


@contextlib.contextmanager
def serve(handler: type, address: str, port: int, keys: Callable[[], dict]) -> Iterator[ThreadingHTTPServer]:
    """Runs a metadata service that returns `keys()`. `requests` has the addresses and paths of its requests."""
    server = ThreadingHTTPServer((address, port), handler)
    server.requests, server.keys = [], keys
    with running(server):
        yield server
