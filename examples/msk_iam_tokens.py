"""Serves the tokens of AWS IAM for Amazon MSK to the workers of this machine, with the AWS credentials of the environment.

Run it beside each worker: KAFKA_OAUTH_CLIENT_SECRET=... python examples/msk_iam_tokens.py REGION PORT
"""

import base64
import hmac
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from aws_msk_iam_sasl_signer import MSKAuthTokenProvider

REGION, PORT = sys.argv[1], int(sys.argv[2])
CLIENT = "Basic " + base64.b64encode(f"feedline:{os.environ['KAFKA_OAUTH_CLIENT_SECRET']}".encode()).decode()


class Tokens(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        if not hmac.compare_digest(self.headers.get("authorization", "").encode(), CLIENT.encode()):
            return self.send_error(401)
        token, expiry_ms = MSKAuthTokenProvider.generate_auth_token(REGION)
        answer = {"access_token": token, "token_type": "Bearer", "expires_in": int(expiry_ms / 1000 - time.time())}
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())


ThreadingHTTPServer(("127.0.0.1", PORT), Tokens).serve_forever()
