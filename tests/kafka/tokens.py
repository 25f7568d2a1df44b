"""A token endpoint of an OpenID Connect provider, which signs tokens with a key of its own."""

import base64
import http.server
import json
import subprocess
import threading
import time
import urllib.parse
from pathlib import Path

LIFETIME_S = 5


def encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class TokenServer:
    """Serves `/token` for one client. `jwks` is a file with the public key, and `issued` contains all tokens."""

    def __init__(self, folder: Path, client: str, secret: str) -> None:
        self.key, self.issued = folder / "token.key", list[str]()
        subprocess.run(["openssl", "genrsa", "-out", str(self.key), "2048"], check=True, capture_output=True)
        shown = subprocess.run(["openssl", "rsa", "-in", str(self.key), "-noout", "-modulus"], check=True, capture_output=True, text=True)
        modulus = bytes.fromhex(shown.stdout.strip().removeprefix("Modulus="))
        self.jwks = folder / "jwks.json"
        key = {"kty": "RSA", "kid": "one", "use": "sig", "alg": "RS256", "n": encode(modulus), "e": "AQAB"}
        self.jwks.write_text(json.dumps({"keys": [key]}))
        expected = "Basic " + base64.b64encode(f"{client}:{secret}".encode()).decode()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = urllib.parse.parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
                is_valid = self.headers["authorization"] == expected and body["grant_type"] == ["client_credentials"]
                answer = {"access_token": outer.token(), "expires_in": LIFETIME_S} if is_valid else {"error": "invalid_client"}
                self.send_response(200 if is_valid else 401)
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/token"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def token(self) -> str:
        now = int(time.time())
        parts = [{"alg": "RS256", "kid": "one"}, {"sub": "feedline", "aud": "kafka", "scope": "kafka", "iat": now, "exp": now + LIFETIME_S}]
        signed = ".".join(encode(json.dumps(part).encode()) for part in parts)
        command = ["openssl", "dgst", "-sha256", "-sign", str(self.key)]
        signature = subprocess.run(command, input=signed.encode(), check=True, capture_output=True).stdout
        self.issued.append(f"{signed}.{encode(signature)}")
        return self.issued[-1]

    def stop(self) -> None:
        self.server.shutdown()
