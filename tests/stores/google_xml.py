"""The XML API of Google Cloud Storage, which Feedline uses, before gcp-storage-emulator, which has only the JSON API.

Each request needs a bearer token that `is_allowed` accepts, and the right to `list` or to `read`.
"""

import base64
import contextlib
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from datetime import datetime
from email.utils import format_datetime
from http.server import ThreadingHTTPServer
from xml.sax.saxutils import escape

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from servers import Handler, running

PAGE = 3


class GoogleStorage(Handler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = urllib.parse.urlsplit(self.path)
        bucket, _, name = urllib.parse.unquote(parts.path).lstrip("/").partition("/")
        token = self.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        if not self.server.is_allowed(token):
            return self.answer(401, b"<Error><Code>AuthenticationRequired</Code></Error>")
        if ("read" if name else "list") not in self.server.rights:
            return self.answer(403, b"<Error><Code>AccessDenied</Code></Error>")
        query = {key: values[0] for key, values in urllib.parse.parse_qs(parts.query).items()}
        return self.list(bucket, query) if not name else self.read(bucket, name)

    def list(self, bucket: str, query: dict) -> None:
        path = f"/storage/v1/b/{bucket}/o?prefix={urllib.parse.quote(query.get('prefix', ''), safe='')}"
        items = sorted(json.loads(self.call(path)).get("items") or [], key=lambda item: item["name"])
        items = [item for item in items if item["name"] > query.get("continuation-token", "")]
        rows = "".join(
            f"<Contents><Key>{escape(item['name'])}</Key><Size>{item['size']}</Size><ETag>&quot;{self.tag(item)}&quot;</ETag>"
            f"<LastModified>{item['updated']}</LastModified></Contents>"
            for item in items[:PAGE]
        )
        token = f"<NextContinuationToken>{escape(items[PAGE - 1]['name'])}</NextContinuationToken>" if len(items) > PAGE else ""
        body = f"<ListBucketResult xmlns='http://doc.s3.amazonaws.com/2006-03-01'><Name>{bucket}</Name>{rows}{token}</ListBucketResult>"
        self.answer(200, body.encode())

    def read(self, bucket: str, name: str) -> None:
        path = f"/b/{bucket}/o/{urllib.parse.quote(name, safe='')}"
        try:
            item = json.loads(self.call(f"/storage/v1{path}"))
        except urllib.error.HTTPError as error:
            return self.answer(error.code, b"<Error><Code>NoSuchKey</Code></Error>")
        modified = datetime.fromisoformat(item["updated"].replace("Z", "+00:00"))
        headers = {"ETag": f'"{self.tag(item)}"', "Last-Modified": format_datetime(modified, usegmt=True)}
        if self.headers.get("If-Match", headers["ETag"]) != headers["ETag"]:
            return self.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
        if self.command == "HEAD":
            checksums = {"x-goog-hash": f"crc32c={item['crc32c']},md5={item['md5Hash']}"}
            return self.answer(200, b"", {**headers, **checksums, "Content-Length": item["size"]})
        wanted = self.headers.get("Range")
        body = self.call(f"/download/storage/v1{path}?alt=media", {"Range": wanted} if wanted else {})
        if self.tag(json.loads(self.call(f"/storage/v1{path}"))) != self.tag(item):
            # The object was replaced between the two requests to the emulator.
            return self.read(bucket, name)
        if not wanted:
            return self.answer(200, body, headers)
        start = int(wanted.removeprefix("bytes=").split("-")[0])
        self.answer(206, body, {**headers, "Content-Range": f"bytes {start}-{start + len(body) - 1}/{item['size']}"})

    @staticmethod
    def tag(item: dict) -> str:
        # The tag of a composed object is not a hash of its bytes.
        return item["generation"]

    def call(self, path: str, headers: dict | None = None) -> bytes:
        request = urllib.request.Request(self.server.emulator + path, headers=headers or {})
        return urllib.request.urlopen(request, timeout=10).read()


@contextlib.contextmanager
def serve_storage(emulator: str, is_allowed: Callable[[str], bool], rights: tuple[str, ...] = ("list", "read")) -> Iterator[str]:
    """Runs the server, and returns its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), GoogleStorage)
    server.emulator, server.is_allowed, server.rights = emulator, is_allowed, rights
    with running(server):
        yield server.url


def is_token_of(account: str, key: rsa.RSAPublicKey, token: str) -> bool:
    """Whether a token is a JWT that the service account has signed for itself."""
    try:
        signed, signature = token.rsplit(".", 1)
        decode = lambda part: base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
        key.verify(decode(signature), signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        claims = json.loads(decode(signed.split(".")[1]))
    except (ValueError, InvalidSignature):
        return False
    return claims["iss"] == account and claims["exp"] > datetime.now().timestamp() and "scope" in claims
